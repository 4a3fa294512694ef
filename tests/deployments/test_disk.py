from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from deployments.serve import disk


def test_a_full_disk_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = psutil.disk_usage(str(tmp_path)).free
    monkeypatch.setattr(disk, "FLOOR_BYTES", 2 * free)
    with pytest.raises(disk.DiskFullError, match=r"disk of .* is full: .* RAY_TMPDIR") as full:
        disk.check_free(tmp_path)
    assert str(tmp_path) in str(full.value)


def test_some_space_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "FLOOR_BYTES", 0)
    disk.check_free(tmp_path)
