"""A terminal whose last line may change: a bar, below all that was written."""

from __future__ import annotations

import shutil
import threading
import time
from typing import TextIO

CLEAR_LINE = "\r\x1b[K"
INTERVAL_S = 5.0
"""Between lines where none can change, such as in a file."""


class LiveTerminal:
    """``out`` for several threads. ``write`` is what ``logging`` asks of a stream."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._can_change = out.isatty()
        self._live = False
        self._shown_at = -INTERVAL_S
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        with self._lock:
            if self._live:
                self._out.write(CLEAR_LINE)
                self._live = False
            self._out.write(text)

    def flush(self) -> None:
        with self._lock:
            self._out.flush()

    def show(self, work: str, share: float | None, figures: str) -> None:
        """``share`` of ``work`` is done, if that is known: a bar in the place of the one before."""
        if self._can_change:
            with self._lock:
                self._out.write(CLEAR_LINE + bar(work, share, figures, _columns()))
                self._out.flush()
                self._live = True
        elif time.monotonic() - self._shown_at >= INTERVAL_S:
            self._shown_at = time.monotonic()
            self.write(f"{work}: {figures}\n")
            self.flush()


def bar(work: str, share: float | None, figures: str, columns: int) -> str:
    """A line that fits into ``columns``."""
    if share is None:
        return f"{work}  {figures}"[: columns - 1]
    head, tail = f"{work} {min(share, 1):4.0%} ", f" {figures}"
    width = min(columns - 1 - len(head) - len(tail) - 2, 30)
    if width < 5:
        return (head + tail.lstrip())[: columns - 1]
    full = round(width * min(share, 1))
    return f"{head}[{'#' * full}{'.' * (width - full)}]{tail}"


def _columns() -> int:
    return shutil.get_terminal_size().columns
