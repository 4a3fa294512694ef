"""What a log has of long work, where there is no terminal."""

from __future__ import annotations

import logging

import pytest

from backend_metal.models import progress
from backend_metal.models.progress import DownloadProgress, Progress


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", -1.0)


def test_a_line_has_what_is_done_of_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Progress(total=2_000_000_000, desc="loading weights", disable=True) as bar:
        bar.update(500_000_000)
        bar.update(1_000_000_000)
    assert caplog.messages == [
        "loading weights: 0.50 of 2.00 GB",
        "loading weights: 1.50 of 2.00 GB",
    ]


def test_a_download_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """By the names that huggingface_hub gives its bars."""
    caplog.set_level(logging.INFO)
    for desc in ("Downloading bytes", "Reconstructing (incomplete total...)", "Fetching 3 files"):
        DownloadProgress(total=0, desc=desc, disable=True).update(250_000_000)
    assert caplog.messages == ["downloading: 0.25 GB"]


def test_now_and_then_is_enough(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(progress, "INTERVAL_S", 3600.0)
    Progress(total=1, desc="loading weights", disable=True).update(1)
    assert caplog.messages == []
