"""Parts of a start, for the log."""

from __future__ import annotations

import logging
import time

from deployments.launch.events import LAUNCHER

logger = logging.getLogger(LAUNCHER)


class DeployError(Exception):
    """Serve has given up an application; the message says why."""


class RayError(DeployError):
    """Ray did not start; it may at another time, when the machine is less busy."""


class Phases:
    """Parts of the start, and how long each took."""

    def __init__(self, began: float) -> None:
        self._began = self._since = began
        self._took: list[str] = []
        self._current = "the launcher"

    def begin(self, name: str) -> None:
        self._end()
        self._current = name
        logger.info("%s", name, extra={"event": "phase"})

    def finish(self) -> float:
        """Log all parts, and return what they took together, in seconds."""
        self._end()
        logger.info("Start by part: %s.", ", ".join(self._took))
        return time.time() - self._began

    def _end(self) -> None:
        now = time.time()
        self._took.append(f"{self._current} {now - self._since:.1f} s")
        self._since = now
