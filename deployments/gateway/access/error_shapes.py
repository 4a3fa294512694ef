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
MODELS_PATH = "/v1/models"
"""That both APIs have."""


def shaped_response(error: ApiError, scope: Scope) -> Response:
    return Response(shaped_body(error, scope), error.status, error.headers, "application/json")


def shaped_body(error: ApiError, scope: Scope) -> bytes:
    body = error.json()
    if _is_under(MESSAGES_PATH, scope) or is_anthropics(scope):
        return in_anthropics_shape(body, scope.get(SCOPE_KEY))
    return body


def is_anthropics(scope: Scope) -> bool:
    """Whether a client of that API asks, on a path that others ask, too."""
    return _is_under(MODELS_PATH, scope) and VERSION_HEADER in Headers(scope=scope)


def _is_under(path: str, scope: Scope) -> bool:
    asked: str = scope["path"]
    return asked == path or asked.startswith(f"{path}/")
