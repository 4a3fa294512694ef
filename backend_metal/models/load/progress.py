"""Progress of long work: a bar in a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import time
from typing import Any

from tqdm.auto import tqdm

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
LATEST = 0.3
"""The share of the last interval in the speed that is told."""


class Progress(tqdm):  # type: ignore[type-arg]
    """Of bytes. A server's processes have no terminal, and a bar would be no line of a log."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._what = kwargs.get("desc")
        self._is_told = True
        self._done = 0.0
        self._told = 0.0
        self._told_at = time.monotonic()
        self._speed: float | None = None
        super().__init__(*args, **{"disable": None, **kwargs})

    def update(self, n: float | None = 1) -> bool | None:
        self._done += n or 0
        passed_s = time.monotonic() - self._told_at
        if self.disable and self._is_told and passed_s > INTERVAL_S:
            self._tell(passed_s)
        return super().update(n)

    def _tell(self, passed_s: float) -> None:
        now = (self._done - self._told) / passed_s
        self._speed = now if self._speed is None else self._speed + LATEST * (now - self._speed)
        self._told, self._told_at = self._done, time.monotonic()
        of = f" of {self.total / 1e9:.2f}" if self.total else ""
        left = ""
        if self.total and self._speed > 0:
            left = f", {max(self.total - self._done, 0) / self._speed:.0f} s left"
        figures = f"{self._done / 1e9:.2f}{of} GB, {self._speed / 1e6:.1f} MB/s{left}"
        # The launcher makes a bar of these fields.
        fields = {"work": self._what, "figures": figures, "done": self._done, "total": self.total}
        logger.info("%s: %s", self._what, figures, extra=fields)


class DownloadProgress(Progress):
    """For ``snapshot_download``, which makes three: of files, and of bytes received and written."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_told = str(self._what).startswith("Reconstructing")
        self._what = "downloading"


class NoProgress(DownloadProgress):
    """Of a few small files."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})
        self._is_told = False
