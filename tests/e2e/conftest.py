"""One real `serve run` a config, shared by the tests that need it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.e2e.serve_process import (
    FAKE_BACKEND,
    LAUNCH,
    REPOSITORY,
    ServeProcess,
    plugin,
    serve_process,
)


def shipped_config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((REPOSITORY / "configs" / name).read_text())
    return config


@pytest.fixture(scope="module")
def fake_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """The shipped application over a backend that was written against the protocol alone, below
    a prefix of its own."""
    config = shipped_config("app.yaml")
    config["applications"][0]["route_prefix"] = "/llm"
    config["applications"][0]["args"]["engine"] = {
        "backend": "fake",
        "model": "somebody/echo",
        "max_num_seqs": 256,
        # A stream that goes on is more than sockets can hold.
        "max_model_len": 1_000_000,
        "options": {"faults": {"boom": "step_error", "crowd": "queue_full"}},
    }
    path = plugin(tmp_path_factory.mktemp("plugin"), fake=FAKE_BACKEND)
    with serve_process(config, environment={"PYTHONPATH": path}) as running:
        yield running


@pytest.fixture(scope="module")
def demo_serve() -> Iterator[ServeProcess]:
    """The default config, started as `make serve &` starts it in a script."""
    with serve_process(
        shipped_config("app.yaml"), command=LAUNCH, stop_signal=signal.SIGTERM
    ) as running:
        yield running
