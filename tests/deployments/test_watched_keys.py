"""Keys that follow their file."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from deployments import watched_keys
from deployments.api_keys import ApiKey
from deployments.watched_keys import CHECK_INTERVAL_S, KeySource, WatchedKeys


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_an_interval(self) -> None:
        self.now += CHECK_INTERVAL_S


@pytest.fixture
def clock() -> Clock:
    return Clock()


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def watched(path: Path, clock: Clock) -> WatchedKeys:
    source = KeySource((ApiKey.of("settings-1", "fixed"),), (ApiKey.of("line-1", "built"),), path)
    return WatchedKeys(source, path, clock=clock)


def accepted(keys: WatchedKeys, *candidates: str) -> list[str]:
    return [key for key in candidates if keys.find(key)]


ALL = ("fixed", "built", "one", "two")


def test_a_change_holds_within_an_interval(tmp_path: Path, clock: Clock) -> None:
    path = written(tmp_path / "keys", "one\n")
    keys = watched(path, clock)
    # This host's file counts from the start, not what another host had.
    assert accepted(keys, *ALL) == ["fixed", "one"]
    written(path, "two\n")
    assert accepted(keys, *ALL) == ["fixed", "one"]
    clock.pass_an_interval()
    assert accepted(keys, *ALL) == ["fixed", "two"]


def test_a_file_that_was_replaced_as_editors_do_is_noticed(tmp_path: Path, clock: Clock) -> None:
    path = written(tmp_path / "keys", "one\n")
    keys = watched(path, clock)
    written(tmp_path / "new", "two\n").replace(path)
    clock.pass_an_interval()
    assert accepted(keys, *ALL) == ["fixed", "two"]


@pytest.mark.parametrize("broken", ["", "two words\n", "fixed\n"])
def test_a_broken_edit_changes_nothing_and_is_told_once(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    path = written(tmp_path / "keys", "one\n")
    keys = watched(path, clock)
    written(path, broken)
    with caplog.at_level(logging.ERROR, logger="deployments"):
        for _ in range(5):
            clock.pass_an_interval()
            assert accepted(keys, *ALL) == ["fixed", "one"]
    assert len(caplog.messages) == 1
    assert "the API keys stay as they were" in caplog.messages[0]
    assert not any(word in caplog.messages[0] for word in ("words", "fixed\n"))
    written(path, "two\n")
    clock.pass_an_interval()
    assert accepted(keys, *ALL) == ["fixed", "two"]


def test_without_a_file_on_this_host_the_keys_of_the_build_hold(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="deployments"):
        keys = watched(tmp_path / "keys", clock)
        assert accepted(keys, *ALL) == ["fixed", "built"]
        clock.pass_an_interval()
        assert accepted(keys, *ALL) == ["fixed", "built"]
    assert len(caplog.messages) == 1
    assert bool(keys)
    path = written(tmp_path / "keys", "one\n")
    clock.pass_an_interval()
    assert accepted(keys, *ALL) == ["fixed", "one"]
    path.unlink()
    clock.pass_an_interval()
    assert accepted(keys, *ALL) == ["fixed", "one"]


def test_the_file_is_looked_at_once_an_interval(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "keys", "one\n")
    keys = watched(path, clock)
    looks: list[str] = []

    def look(path: Path) -> str:
        looks.append(str(path))
        return "gone"

    monkeypatch.setattr(watched_keys, "_fingerprint", look)
    for _ in range(100):
        keys.find("one")
    assert looks == []
    clock.pass_an_interval()
    for _ in range(100):
        keys.find("one")
    assert looks == [str(path)]
