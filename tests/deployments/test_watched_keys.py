"""Keys that follow their file."""

from __future__ import annotations

import errno
import gc
import logging
import os
import queue
import threading
from pathlib import Path

import pytest

from deployments.gateway.access import keys_file, watched_keys
from deployments.gateway.access.api_keys import ApiKey
from deployments.gateway.access.watched_keys import CHECK_INTERVAL_S, KeySource, WatchedKeys


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def source_of(path: Path) -> KeySource:
    return KeySource((ApiKey.of("settings-1", "fixed"),), (ApiKey.of("line-1", "built"),), path)


def watched(path: Path) -> WatchedKeys:
    return WatchedKeys(source_of(path), path)


def accepted(keys: WatchedKeys, *candidates: str) -> list[str]:
    return [key for key in candidates if keys.find(key)]


ALL = ("fixed", "built", "one", "two")


def test_a_change_holds_from_the_next_look_on(tmp_path: Path) -> None:
    path = written(tmp_path / "keys", "one\n")
    keys = watched(path)
    # This host's file counts from the start, not what another host had.
    assert accepted(keys, *ALL) == ["fixed", "one"]
    written(path, "two\n")
    assert accepted(keys, *ALL) == ["fixed", "one"]
    keys.follow()
    assert accepted(keys, *ALL) == ["fixed", "two"]


def test_a_file_that_was_replaced_as_editors_do_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "keys", "one\n")
    keys = watched(path)
    written(tmp_path / "new", "two\n").replace(path)
    keys.follow()
    assert accepted(keys, *ALL) == ["fixed", "two"]


@pytest.mark.parametrize("broken", ["", "two words\n", "fixed\n"])
def test_a_broken_edit_changes_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    path = written(tmp_path / "keys", "one\n")
    keys = watched(path)
    written(path, broken)
    with caplog.at_level(logging.ERROR, logger="deployments"):
        for _ in range(5):
            keys.follow()
            assert accepted(keys, *ALL) == ["fixed", "one"]
    assert len(caplog.messages) == 1
    assert "the API keys stay as they were" in caplog.messages[0]
    assert not any(word in caplog.messages[0] for word in ("words", "fixed\n"))
    written(path, "two\n")
    keys.follow()
    assert accepted(keys, *ALL) == ["fixed", "two"]


def test_without_a_file_on_this_host_the_keys_of_the_build_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="deployments"):
        keys = watched(tmp_path / "keys")
        assert accepted(keys, *ALL) == ["fixed", "built"]
        keys.follow()
        assert accepted(keys, *ALL) == ["fixed", "built"]
    assert len(caplog.messages) == 1
    assert bool(keys)
    path = written(tmp_path / "keys", "one\n")
    keys.follow()
    assert accepted(keys, *ALL) == ["fixed", "one"]
    path.unlink()
    keys.follow()
    assert accepted(keys, *ALL) == ["fixed", "one"]


def test_a_look_that_hangs_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "keys", "one\n")
    keys = watched(path)
    written(path, "two\n")
    looking, answered = threading.Event(), threading.Event()
    fingerprint = watched_keys._fingerprint

    def hang(path: Path) -> tuple[int, int, int, int]:
        looking.set()
        answered.wait()
        return fingerprint(path)

    monkeypatch.setattr(watched_keys, "_fingerprint", hang)
    thread = threading.Thread(target=keys.follow)
    thread.start()
    looking.wait()
    assert accepted(keys, *ALL) == ["fixed", "one"]
    answered.set()
    thread.join()
    assert accepted(keys, *ALL) == ["fixed", "two"]


def test_a_thread_looks_for_as_long_as_the_keys_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: queue.Queue[threading.Event] = queue.Queue()

    def pause(seconds: float) -> None:
        assert seconds == CHECK_INTERVAL_S
        over = threading.Event()
        pauses.put(over)
        over.wait()

    monkeypatch.setattr(watched_keys, "sleep", pause)
    path = written(tmp_path / "keys", "one\n")
    others = set(threading.enumerate())
    keys = source_of(path).keys()
    assert isinstance(keys, WatchedKeys)
    for word in ("two", "one"):
        written(path, f"{word}\n")
        pauses.get().set()
        over = pauses.get()
        assert accepted(keys, *ALL) == ["fixed", word]
        pauses.put(over)
    (thread,) = set(threading.enumerate()) - others
    assert thread.daemon
    del keys
    gc.collect()
    pauses.get().set()
    thread.join()


def test_a_file_that_cannot_be_read_for_a_while_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "keys", "one\n")
    keys = watched(path)

    def fail(path: Path) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    written(path, "two\n")
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, logger="deployments"):
        patch.setattr(keys_file, "_content", fail)
        keys.follow()
        keys.follow()
    assert accepted(keys, *ALL) == ["fixed", "one"]
    (told,) = caplog.messages
    assert os.strerror(errno.ESTALE) in told
    # The same file as before.
    keys.follow()
    assert accepted(keys, *ALL) == ["fixed", "two"]


def test_a_look_that_fails_as_nobody_expected_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "keys", "one\n")
    keys = watched(path)

    def fail(path: Path) -> tuple[ApiKey, ...]:
        raise RecursionError("the secret two")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, logger="deployments"):
        patch.setattr(watched_keys, "read_keys_file", fail)
        written(path, "two\n")
        keys.follow()
        keys.follow()
    assert accepted(keys, *ALL) == ["fixed", "one"]
    (told,) = caplog.messages
    assert "RecursionError" in told
    assert "secret" not in caplog.text
    written(path, "two\n\n")
    keys.follow()
    assert accepted(keys, *ALL) == ["fixed", "two"]
