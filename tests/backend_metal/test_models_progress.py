"""What a log has of long work, where there is no terminal."""

from __future__ import annotations

import logging

import pytest

from backend_metal.models.load import progress
from backend_metal.models.load.progress import DownloadProgress, NoProgress, Progress


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_a_line_has_what_is_done_of_all_how_fast_and_what_is_left(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Progress(total=2_000_000_000, desc="loading weights", disable=True) as bar:
        for passed_s, done in ((2.0, 500_000_000), (0.5, 100_000_000), (1.5, 900_000_000)):
            clock.now += passed_s
            bar.update(done)
    # A second is told at once, less is told with what follows.
    assert caplog.messages == [
        "loading weights: 0.50 of 2.00 GB, 250.0 MB/s, 6 s left",
        "loading weights: 1.50 of 2.00 GB, 325.0 MB/s, 2 s left",
    ]


def test_a_download_is_told_of_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """By the names that huggingface_hub gives its bars."""
    caplog.set_level(logging.INFO)
    for desc in ("Downloading bytes", "Reconstructing (incomplete total...)", "Fetching 3 files"):
        bar = DownloadProgress(total=0, desc=desc, disable=True)
        clock.now += 2.0
        bar.update(250_000_000)
    assert caplog.messages == ["downloading: 0.25 GB, 125.0 MB/s"]


def test_now_and_then_is_enough(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bar = Progress(total=1, desc="loading weights", disable=True)
    clock.now += 0.9
    bar.update(1)
    assert caplog.messages == []


def test_small_files_are_not_told_of(
    clock: Clock, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    bar = NoProgress(total=2, desc="Reconstructing (incomplete total...)")
    clock.now += 60.0
    bar.update(1)
    assert caplog.messages == []
    assert capsys.readouterr().err == ""
