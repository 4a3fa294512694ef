"""Where this package's log lines go inside Serve's actors."""

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
