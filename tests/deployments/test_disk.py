from __future__ import annotations

import logging
from pathlib import Path

import psutil
import pytest

from deployments.serve import disk


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    free = psutil.disk_usage(str(tmp_path)).free
    monkeypatch.setattr(disk, "FLOOR_BYTES", 2 * free)
    return tmp_path


async def test_a_full_disk_is_named_with_the_remedy(full: Path) -> None:
    with pytest.raises(disk.DiskFullError, match=r"disk of .* is full: .* RAY_TMPDIR") as told:
        await disk.wait_for_room(full, patience_s=0)
    assert str(full) in str(told.value)


async def test_some_space_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "FLOOR_BYTES", 0)
    await disk.wait_for_room(tmp_path, patience_s=0)


async def test_a_start_goes_on_once_there_is_room(
    full: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    polls = 0

    async def poll(seconds: float) -> None:
        nonlocal polls
        polls += 1
        if polls == 3:
            monkeypatch.setattr(disk, "FLOOR_BYTES", 0)

    monkeypatch.setattr(disk.asyncio, "sleep", poll)
    with caplog.at_level(logging.ERROR):
        await disk.wait_for_room(full, patience_s=3600)
    assert polls == 3
    [line] = caplog.messages
    assert "waits for room: the disk of" in line
