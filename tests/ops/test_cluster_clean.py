from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ops.cluster.clean import DAY_S, clean, main, shorten


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """With one session, as Ray leaves it."""
    (tmp_path / "ray" / "session_1" / "logs" / "serve").mkdir(parents=True)
    (tmp_path / "ray" / "session_latest").symlink_to(tmp_path / "ray" / "session_1")
    (tmp_path / "log").mkdir()
    return tmp_path


def log_of(state: Path, name: str, *, days: float) -> Path:
    """One that was last written so many days ago."""
    path = state / "ray" / "session_1" / "logs" / name
    path.write_text("a line\n")
    written = time.time() - days * DAY_S
    os.utime(path, (written, written))
    return path


def test_logs_of_ended_processes_go_after_their_days(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = [log_of(state, name, days=15) for name in ("worker-1.out", "serve/replica-1.log")]
    recent = log_of(state, "worker-2.out", days=13)
    main([str(state), "14"])
    assert not any(path.exists() for path in ended)
    assert recent.exists()
    assert "removed 2 logs of ended processes, 14 bytes" in capsys.readouterr().out


def test_a_process_that_says_nothing_keeps_its_log(state: Path) -> None:
    silent = log_of(state, "raylet.err", days=100)
    with silent.open("a"):
        os.utime(silent, (0, 0))
        assert clean(state, 14) == (0, 0)
    assert clean(state, 14) == (1, 7)


def test_only_logs_are_removed(state: Path) -> None:
    session = state / "ray" / "session_1"
    (session / "session.json").touch()
    (state / "store").mkdir()
    (state / "store" / "appendonly.aof").touch()
    for path in (session / "session.json", state / "store" / "appendonly.aof"):
        os.utime(path, (0, 0))
    assert clean(state, 1) == (0, 0)
    assert (state / "ray" / "session_latest").is_symlink()


def test_a_host_that_never_ran_ray_has_nothing_to_remove(tmp_path: Path) -> None:
    assert clean(tmp_path, 14) == (0, 0)


def test_whoever_has_a_long_log_open_goes_on_in_it(state: Path) -> None:
    log = state / "log" / "ray.log"
    with log.open("a") as service:
        service.write("before\n")
        service.flush()
        shorten(log, max_bytes=7)
        assert log.read_text() == "before\n"
        shorten(log, max_bytes=6)
        service.write("after\n")
    assert log.read_text() == "after\n"
    assert (state / "log" / "ray.log.1").read_text() == "before\n"
