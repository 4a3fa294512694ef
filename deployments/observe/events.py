"""Log records as events for the launcher: JSON lines over a local socket."""

from __future__ import annotations

import json
import logging
import os
import socket
from logging.handlers import SocketHandler

EVENTS = "POMONA_EVENTS"
"""The environment variable with the path of the launcher's socket."""
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({})))


class EventHandler(SocketHandler):
    """Sends each record, with its extra fields, to the launcher. A record that does not fit into
    the socket's buffer is dropped: no engine waits for a terminal."""

    def __init__(self, path: str, component: str, level: int = logging.INFO) -> None:
        super().__init__(path, None)
        self.setLevel(level)
        # A dropped record leaves a part of a line: the next one needs a new connection.
        self.closeOnError = True
        self._component = component

    def makeSocket(self, timeout: float = 1) -> socket.socket:  # noqa: N802
        made = super().makeSocket(timeout)
        made.setblocking(False)
        return made

    def makePickle(self, record: logging.LogRecord) -> bytes:  # noqa: N802
        extra = {k: v for k, v in vars(record).items() if k not in _OF_EVERY_RECORD}
        event = extra | {
            "component": self._component,
            "level": record.levelname,
            "message": record.getMessage(),
        }
        return json.dumps(event, default=str).encode() + b"\n"


def event_handler(component: str, level: int = logging.INFO) -> list[EventHandler]:
    """One handler, or none in a process that no launcher started."""
    path = os.environ.get(EVENTS)
    return [EventHandler(path, component, level)] if path else []
