"""Logging inside Serve's actors: where lines go, and what they say of a request."""

from __future__ import annotations

import logging


def join_serve_log(*packages: str) -> None:
    """Give ``packages`` the handlers and level of Serve's own logger, request ids included."""
    serve_logger = logging.getLogger("ray.serve")
    for package in packages:
        logger = logging.getLogger(package)
        logger.handlers = serve_logger.handlers
        logger.setLevel(serve_logger.level)
        logger.propagate = False


def log_request(logger: logging.Logger, message: str, **fields: object) -> None:
    """A line with ``fields`` as text, and as members where lines are JSON."""
    if logger.isEnabledFor(logging.INFO):
        told = " ".join(f"{name}={value}" for name, value in fields.items())
        # The caller's line is of interest, not this one.
        logger.info("%s %s", message, told, extra=fields, stacklevel=2)
