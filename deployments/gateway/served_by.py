"""Comments that tell a stream's client which engine its answer comes from."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from deployments.http.errors import ApiError, shown

SERVED_BY_HEADER = "X-Pomona-Served-By"


def wants_served_by(scope: Scope) -> bool:
    """Whether a request asks for such comments. Raises ``ApiError`` for what says neither."""
    given = Headers(scope=scope).get(SERVED_BY_HEADER)
    if given is None:
        return False
    if given not in ("1", "true"):
        raise ApiError(
            400,
            f'{SERVED_BY_HEADER} must be "1" or "true", not {shown(given)}.',
            param=SERVED_BY_HEADER,
        )
    return True
