"""CORS: pages from other origins, to which a browser gives answers only if the server allows it."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

ANY = "*"
RESPONSE_HEADERS = (
    "Retry-After",
    "X-Pomona-Dropped",
    "Request-Id",
    "X-Request-Id",
    *(
        f"x-ratelimit-{what}-{of}"
        for what in ("limit", "remaining", "reset")
        for of in ("requests", "tokens")
    ),
)


def is_allowed(origin: str, allowed: Sequence[str]) -> bool:
    return origin in allowed or ANY in allowed


def cross_origin(allowed: Sequence[str]) -> list[Middleware]:
    """None unless there are origins to allow. Keys are headers, not cookies, so a page has only
    those that its user gave it."""
    if not allowed:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(allowed),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=list(RESPONSE_HEADERS),
        )
    ]
