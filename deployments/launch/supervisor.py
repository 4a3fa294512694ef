"""Starts a server again that has served and then died, or whose Ray died while it started.

Any local user can end Ray: its ports answer one call without the token, which ends the process.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable

from deployments.launch.server import Server

logger = logging.getLogger("pomona")

POLL_INTERVAL_S = 0.2
MOST_FAILURES = 6
"""In a row. After each the pause is twice as long."""
FIRST_PAUSE_S = 1.0
STEADY_S = 60.0
"""Uptime after which a failure counts as the first."""


class Supervisor:
    """``start`` makes a server; ``check``, called while it is up, may raise ``ValueError``, which
    ends it."""

    def __init__(self, start: Callable[[], Server], check: Callable[[], None]) -> None:
        self._start = start
        self._check = check
        self._server: Server | None = None
        self._stopped = False

    def run(self) -> int:
        """The exit status: 0 if it was told to stop."""
        # A script's `&` has its jobs ignore SIGINT, and a child would inherit that: not so a
        # handler.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)
        failures = 0
        has_served = False
        while not self._stopped:
            served_s, why, ray_died = self._run_one()
            if self._stopped:
                break
            has_served = has_served or served_s is not None
            failures = 1 if served_s is not None and served_s >= STEADY_S else failures + 1
            # A raylet ends if its agents take more than 15 s to start, on a busy machine.
            may_start = has_served or ray_died
            if not may_start or failures == MOST_FAILURES:
                logger.error("%s", why)
                return 1
            pause_s = FIRST_PAUSE_S * 2 ** (failures - 1)
            logger.error("%s It starts again in %.0f s.", why, pause_s)
            self._pause(pause_s)
        return 0

    def _run_one(self) -> tuple[float | None, str, bool]:
        """How long a server served, or None, why it ended, and whether its Ray died."""
        self._server = server = self._start()
        if self._stopped:
            server.interrupt()
        why = ""
        try:
            while server.is_up():
                self._check()
                server.events.show_waiting()
                time.sleep(POLL_INTERVAL_S)
        finally:
            why = server.end()
        ready_at = server.events.ready_at
        served_s = None if ready_at is None else time.monotonic() - ready_at
        return served_s, why, server.ray_died

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopped and time.monotonic() < until:
            time.sleep(min(POLL_INTERVAL_S, seconds))

    def _stop(self, *_: object) -> None:
        self._stopped = True
        if self._server is not None:
            self._server.interrupt()
