"""Which bench is started, with what."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from deployments.command import bench
from tests.support.documents import REPOSITORY


class StartedError(Exception):
    """In the place of a process that becomes another one."""


def test_a_bench_gets_its_arguments_and_finds_the_repository(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []

    def execve(program: str, arguments: list[str], environment: dict[str, str]) -> None:
        started.append((program, arguments, environment["PYTHONPATH"]))
        raise StartedError

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    with pytest.raises(StartedError):
        bench.run(["serve", "--url", "http://here", "--help"])
    command = [sys.executable, "-P", "-m", "ops.bench.serve", "--url", "http://here", "--help"]
    assert started == [(sys.executable, command, f"{REPOSITORY}{os.pathsep}/mine")]


def test_all_that_are_listed_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run(["--help"]) == bench.run([]) == 0
    told = capsys.readouterr().out
    assert len(bench.BENCHES) == 4
    for name in bench.BENCHES:
        assert f"\n  {name} " in told
        assert find_spec(f"ops.bench.{name}.__main__")


def test_an_installation_without_them_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    assert bench.run(["engine"]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "this installation has no benches" in told
    # A package of somebody else's by that name is none of ours.
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "__init__.py").touch()
    assert bench.run(["engine"]) == 1


def test_another_name_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run(["engin"]) == 2
    assert "there is no bench 'engin'; there are engine, serve" in capsys.readouterr().err
