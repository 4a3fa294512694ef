"""Real `serve run`s: over a model that does what its user says, and over one that writes at random
in the vocabulary of a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.clients import qwen3
from tests.support.clients.recipe import CONTEXT
from tests.support.e2e.serve_process import REPOSITORY, ServeProcess, plugin, serve_process

SCRIPTED = "tests.support.clients.scripted_backend:ScriptedBackend"
MODEL = "scripted"
RANDOM_MODEL = "qwen3"


@pytest.fixture(scope="session")
def scripted_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    config = yaml.safe_load((REPOSITORY / "configs" / "app.yaml").read_text())
    config["applications"][0]["args"]["engine"] = {
        "backend": "scripted",
        "model": MODEL,
        "max_model_len": CONTEXT,
    }
    path = plugin(tmp_path_factory.mktemp("plugin"), scripted=SCRIPTED)
    with serve_process(config, environment={"PYTHONPATH": path}) as running:
        yield running


@pytest.fixture(scope="session")
def random_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    checkpoint = tmp_path_factory.mktemp("checkpoint") / RANDOM_MODEL
    qwen3.save(checkpoint)
    config = yaml.safe_load((REPOSITORY / "configs" / "app.yaml").read_text())
    config["applications"][0]["args"]["engine"] = {
        "model": str(checkpoint),
        "max_model_len": 8192,
        "num_kv_blocks": 2048,
    }
    with serve_process(config) as running:
        yield running


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder
