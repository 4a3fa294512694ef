"""Errors as clients read them: in the shape of the API whose path they asked."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Scope

from deployments.http.errors import ApiError
from deployments.http.request_id import SCOPE_KEY
from deployments.http.request_path import route_path
from deployments.protocol import MESSAGES_PATH
from deployments.protocol.anthropic.errors import in_anthropics_shape


def shaped_response(error: ApiError, scope: Scope) -> Response:
    body = error.json()
    if is_anthropics(route_path(scope)):
        body = in_anthropics_shape(body, scope.get(SCOPE_KEY))
    return Response(body, error.status, error.headers, "application/json")


def is_anthropics(path: str) -> bool:
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")
