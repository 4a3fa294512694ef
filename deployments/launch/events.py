"""Events of the server's processes, and what of them a terminal shows."""

from __future__ import annotations

import json
import logging
import socketserver
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployments.launch.live_terminal import INTERVAL_S, LiveTerminal

LAUNCHER = "pomona"
"""The component of the launcher's own child."""
logger = logging.getLogger(LAUNCHER)

Event = Mapping[str, Any]
"""A record of ``deployments.observe.events``."""


class _Reader(socketserver.StreamRequestHandler):
    server: Events

    def handle(self) -> None:
        for line in self.rfile:
            # A process that died may have left a part of a line.
            if line.endswith(b"\n"):
                self.server.take(json.loads(line))


class Events(socketserver.ThreadingUnixStreamServer):
    """Listens at ``path`` in threads of its own, and writes to ``terminal``."""

    def __init__(self, path: Path, terminal: LiveTerminal) -> None:
        super().__init__(str(path), _Reader)
        self.path = path
        self.ready_at: float | None = None
        """On the monotonic clock."""
        self.failure: str | None = None
        """Why Serve gave an application up, or Ray did not start."""
        self.ray_failed = False
        self._terminal = terminal
        self._is_drained = False
        self._phase = "the server's process"
        self._phase_since = self._shown_at = time.monotonic()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="events")
        self._thread.start()

    def close(self) -> None:
        """Call it once no process sends any more: returns when all was read."""
        self.shutdown()
        self._thread.join()
        self.timeout = 0
        while not self._is_drained:
            self.handle_request()
        self.server_close()
        self.path.unlink()

    def handle_timeout(self) -> None:
        """Called by ``handle_request``: no connection is left that was not accepted."""
        self._is_drained = True

    def take(self, event: Event) -> None:
        match event.get("event"):
            case "phase":
                self._phase, self._phase_since = event["message"], time.monotonic()
            case "ready":
                self.ready_at = time.monotonic()
            case "failed" | "Ray failed" as name:
                self.failure, self.ray_failed = event["message"], name == "Ray failed"
            case _:
                self._show(event)

    def show_waiting(self) -> None:
        """Say what the start waits for, if the terminal was silent for some seconds."""
        now = time.monotonic()
        if self.ready_at is None and now - self._shown_at >= INTERVAL_S:
            self._shown_at = now
            waited_s = now - self._phase_since
            self._terminal.show(f"Waiting for {self._phase}", None, f"{waited_s:.0f} s")

    def _show(self, event: Event) -> None:
        if event["component"] == LAUNCHER:
            logger.log(logging.getLevelNamesMapping()[event["level"]], "%s", event["message"])
        elif "work" in event:
            share = event["done"] / event["total"] if event["total"] else None
            self._terminal.show(event["work"], share, event["figures"])
        elif line := to_show(event):
            self._terminal.write(f"{line}\n")
            self._terminal.flush()
        else:
            return
        self._shown_at = time.monotonic()


def to_show(event: Event) -> str | None:
    """The line for ``event``, if it deserves one."""
    if event["level"] not in ("DEBUG", "INFO"):
        return f"{event['level']} {event['component']}: {event['message']}"
    name = event.get("event", "")
    if name.startswith("generation "):
        return _request_line(event)
    # The engine's line says more.
    is_repeated = name.startswith("POST ") and name.endswith(" 200")
    return None if is_repeated else event["message"]


def _request_line(event: Event) -> str:
    """``event`` is the engine's, of a request that has ended."""
    out, first_s, all_s = event["completion_tokens"], event["first_token_s"], event["seconds"]
    told = [f"{event['prompt_tokens']} tokens in ({event['cached_tokens']} cached)", f"{out} out"]
    if out:
        told.append(f"first after {first_s:.2f} s")
        if out > 1 and all_s > first_s:
            told.append(f"{(out - 1) / (all_s - first_s):.1f} tokens/s")
    outcome = event["event"].removeprefix("generation ")
    if outcome != "finished":
        told.append(outcome)
    return f"{event['request_id']}: {', '.join(told)}"
