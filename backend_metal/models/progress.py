"""Progress of long work: a bar in a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import time
from typing import Any

from tqdm.auto import tqdm

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0


class Progress(tqdm):  # type: ignore[type-arg]
    """Of bytes. A server's processes have no terminal, and a bar would be no line of a log."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._what = kwargs.get("desc")
        self._is_told = True
        self._done = 0.0
        self._told_at = time.monotonic()
        super().__init__(*args, **{"disable": None, **kwargs})

    def update(self, n: float | None = 1) -> bool | None:
        self._done += n or 0
        if self.disable and self._is_told and time.monotonic() - self._told_at > INTERVAL_S:
            self._told_at = time.monotonic()
            of = f" of {self.total / 1e9:.2f}" if self.total else ""
            logger.info("%s: %.2f%s GB", self._what, self._done / 1e9, of)
        return super().update(n)


class DownloadProgress(Progress):
    """For ``snapshot_download``, which makes three: of files, and of bytes received and written."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_told = str(self._what).startswith("Reconstructing")
        self._what = "downloading"
