"""Errors as clients read them: in the shape of the API whose path they asked."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from deployments.http.errors import ApiError
from deployments.http.request_id import SCOPE_KEY
from deployments.protocol import MESSAGES_PATH
from deployments.protocol.anthropic.errors import in_anthropics_shape

VERSION_HEADER = "anthropic-version"


def shaped_response(error: ApiError, scope: Scope) -> Response:
    return Response(shaped_body(error, scope), error.status, error.headers, "application/json")


def shaped_body(error: ApiError, scope: Scope) -> bytes:
    body, path = error.json(), scope["path"]
    if path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/") or is_anthropics(scope):
        return in_anthropics_shape(body, scope.get(SCOPE_KEY))
    return body


def is_anthropics(scope: Scope) -> bool:
    """Whether a client of that API asks, on a path that others ask, too."""
    return VERSION_HEADER in Headers(scope=scope)
