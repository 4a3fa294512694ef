"""Another backend has all of the command line: what it asks goes through the entry point."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from deployments.backend import EngineConfig
from deployments.command import chat, models
from deployments.command.doctor.engine_reading import read_engine
from tests.support.e2e.serve_process import plugin


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend ``other``, for this process and for those that it starts."""
    target = "tests.support.deployments.fake_backend:FakeBackend"
    path = plugin(tmp_path / "installed", other=target)
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))


def test_doctor_reads_it() -> None:
    reading = read_engine(EngineConfig(backend="other", model="fake"))
    assert reading.error == ""
    assert reading.devices == ("fake", "cpu")
    assert (reading.attention, reading.wanted) == ("fake", "fake")
    assert reading.plan is not None
    assert reading.plan.needed_bytes == 700


def test_models_are_listed_and_fetched_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--org--mystery" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"model_type": "mystery"}))
    assert models.run(["--backend", "other", "list"]) == 0
    assert "300 B + 400 B  2048 of 4096  yes, on fake" in capsys.readouterr().out
    assert models.run(["list"]) == 0
    assert "no: " in capsys.readouterr().out
    assert models.run(["--backend", "other", "pull", "org/mystery"]) == 0
    assert capsys.readouterr().out == "/fetched/org/mystery\n"
    assert models.run(["--backend", "nowhere", "pull", "org/mystery"]) == 1
    assert "engine.backend must be one of" in capsys.readouterr().err


def test_a_chat_without_a_server_is_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello there\nhello again\n"))
    assert chat.run(["--backend", "other", "mine"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Chatting with mine in this process.")
    assert "hello there" in told
    assert "hello again" in told
