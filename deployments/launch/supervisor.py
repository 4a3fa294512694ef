"""Starting a server again that has served and then died, since any local user can end Ray.

Ray's ports answer one call before they ask for the token, and it ends the process that is asked.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable

from deployments.launch.serve_status import cause
from deployments.launch.server import POLL_INTERVAL_S, Server
from deployments.launch.start import DeployError

logger = logging.getLogger("pomona")

MOST_FAILURES = 6
"""In a row. After each the pause is twice as long."""
FIRST_PAUSE_S = 1.0
STEADY_S = 60.0
"""Who has served for so long failed for the first time."""


class Supervisor:
    """``start`` makes a server; ``follow`` returns when it is up no more, with the seconds for
    which it served or None, and may raise ``DeployError``."""

    def __init__(
        self, start: Callable[[], Server], follow: Callable[[Server], float | None]
    ) -> None:
        self._start = start
        self._follow = follow
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
            served_s, why = self._run_one()
            if self._stopped:
                break
            has_served = has_served or served_s is not None
            failures = 1 if served_s is not None and served_s >= STEADY_S else failures + 1
            if not has_served or failures == MOST_FAILURES:
                logger.error("%s", why)
                return 1
            pause_s = FIRST_PAUSE_S * 2 ** (failures - 1)
            logger.error("%s It starts again in %.0f s.", why, pause_s)
            self._pause(pause_s)
        return 0

    def _run_one(self) -> tuple[float | None, str]:
        """How long a server served, and why it ended."""
        self._server = server = self._start()
        if self._stopped:
            server.interrupt()
        try:
            served_s = self._follow(server)
        except DeployError as error:
            server.interrupt()
            server.wait()
            server.end()
            return None, str(error)
        lost = server.lost()
        server.end()
        if lost:
            return served_s, f"Ray has died: its {' and '.join(lost)} ended."
        return served_s, f"The server has ended by itself: {cause(server.output.last_words())}"

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopped and time.monotonic() < until:
            time.sleep(min(POLL_INTERVAL_S, seconds))

    def _stop(self, *_: object) -> None:
        self._stopped = True
        if self._server is not None:
            self._server.interrupt()
