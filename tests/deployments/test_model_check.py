"""A process that MLX ends before Python can say why is told of all the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deployments.backend import EngineConfig
from deployments.command.doctor.engine_reading import read_engine
from deployments.launch.model_check import ModelCheck


@pytest.fixture(autouse=True)
def aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -ABRT $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.parametrize(("platform", "has_gpu"), [("darwin", False), ("linux", True)])
def test_a_model_check_that_was_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, has_gpu: bool
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    check = ModelCheck(tmp_path / "config.yaml")
    check._process.wait()
    with pytest.raises(ValueError, match="the check of the model failed: signal 6") as raised:
        check.raise_mistake()
    assert ("macOS shows no GPU" in str(raised.value)) is not has_gpu
    check.end()
    assert ("macOS shows no GPU" in read_engine(EngineConfig()).error) is not has_gpu
