"""Following a server's start: until it answers, ends, or is given up by Serve."""

from __future__ import annotations

import json
import logging
import time
import urllib.error
import urllib.request

from deployments.launch.serve_status import ServeStatus, failures, setbacks
from deployments.launch.server import POLL_INTERVAL_S, Server

logger = logging.getLogger("pomona")

SLOW_START_S = 60


class DeployError(Exception):
    """Serve has given up an application; the message says why."""


class Start:
    """Follows the start of a server, and tells once each what keeps it."""

    def __init__(self, server: Server, application_names: list[str]) -> None:
        self._server = server
        self._names = application_names
        self.status: ServeStatus | None = None
        self._told: set[str] = set()
        self._started = time.monotonic()

    def wait_until_ready(self, url: str) -> bool:
        """Whether the application at ``url`` has a replica that answers; False if the server ended
        first. Raises ``DeployError``."""
        while self._server.is_up():
            try:
                with urllib.request.urlopen(f"{url}/ready", timeout=5) as response:
                    if json.load(response).get("status") == "ready":
                        return True
            except urllib.error.HTTPError as error:
                with error:
                    if error.code in (401, 403):
                        refusal = f"{error.code}: {error.read().decode(errors='replace')}"
                        self._tell(f"{url}/ready refuses this launcher with {refusal}")
            except (OSError, ValueError):
                # Not listening yet, or somebody else's server that is not ready in our sense.
                pass
            self._look_at_status()
            time.sleep(POLL_INTERVAL_S)
        return False

    def _look_at_status(self) -> None:
        if self.status is None and (url := self._server.output.dashboard_url):
            self.status = ServeStatus(url)
        details = self.status.details() if self.status is not None else {}
        if failed := failures(details, self._names):
            raise DeployError("\n".join(failed))
        for text in setbacks(details, self._names):
            self._tell(f"Trying again, since it did not start: {text}")
        if time.monotonic() - max(self._started, self._server.output.progress_at) > SLOW_START_S:
            self._tell("Still starting.")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning("%s", text)
