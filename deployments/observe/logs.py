"""Logging inside Serve's actors: where lines go, and what they say of a request."""

from __future__ import annotations

import logging
import re

from deployments.observe.events import event_handler

# Line breaks, what terminals obey, and what turns the direction of text: LS, PS, C0, C1, bidi.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def join_serve_log(component: str, *packages: str) -> None:
    """Give ``packages`` the handlers and level of Serve's own logger, request ids included, and
    send their records, and Serve's warnings, to the launcher."""
    serve_logger = logging.getLogger("ray.serve")
    events = event_handler(component)
    for package in packages:
        logger = logging.getLogger(package)
        logger.handlers = [*serve_logger.handlers, *events]
        logger.setLevel(serve_logger.level)
        logger.propagate = False
    for handler in event_handler(component, logging.WARNING):
        serve_logger.addHandler(handler)


def log_request(logger: logging.Logger, message: str, **fields: object) -> None:
    """A line with ``fields`` as text, and as members where lines are JSON."""
    if logger.isEnabledFor(logging.INFO):
        told = " ".join(f"{name}={value}" for name, value in fields.items())
        # The caller's line is of interest, not this one.
        logger.info("%s %s", message, told, extra={"event": message, **fields}, stacklevel=2)


def printable_json(text: str) -> str:
    """JSON as one line of a log that nothing in it can forge or hide, and still the same JSON."""
    return _CONTROL.sub(_escaped, text)


def _escaped(control: re.Match[str]) -> str:
    # These may only stand between values; all others, only in strings.
    return " " if control[0] in "\t\n\r" else f"\\u{ord(control[0]):04x}"
