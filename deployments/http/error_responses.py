"""Errors as HTTP responses, and Starlette's handlers that give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from deployments.backend import BackendError
from deployments.http.errors import ApiError, api_error_from, cut, internal_error, unknown_url
from deployments.http.request_id import ANTHROPICS_HEADER, REQUEST_ID_HEADER, SCOPE_KEY


def error_response(error: ApiError) -> Response:
    return Response(error.json(), error.status, error.headers, "application/json")


def told(request: Request, exc: Exception) -> ApiError:
    """What a client is told of whatever was raised while its request was served."""
    match exc:
        case ApiError():
            return exc
        case BackendError():
            return api_error_from(exc)
        case HTTPException():
            return _routing_error(request, exc)
    return internal_error()


def _routing_error(request: Request, exc: HTTPException) -> ApiError:
    path = request.url.path
    match exc.status_code:
        case 404:
            error = unknown_url(request.method, path)
        case 405:
            message = f"{request.method} is not allowed on {cut(path)}."
            error = ApiError(405, message, code="method_not_allowed")
        case status:
            kind = "invalid_request_error" if status < 500 else "server_error"
            error = ApiError(status, exc.detail, type=kind)
    error.headers.update(exc.headers or {})
    return error


def exception_handlers(
    on_error: Callable[[Scope, ApiError], None],
    respond: Callable[[ApiError, Scope], Response] = lambda error, scope: error_response(error),
) -> dict[Any, Any]:
    """Starlette's, for an app whose errors ``on_error`` hears of, each once. ``respond``: how they
    are told."""

    async def answer(request: Request, exc: Exception) -> Response:
        error = told(request, exc)
        on_error(request.scope, error)
        response = respond(error, request.scope)
        # A fault is answered outside of the middlewares, then raised again for the log.
        if request_id := request.scope.get(SCOPE_KEY):
            response.headers[REQUEST_ID_HEADER] = request_id
            response.headers[ANTHROPICS_HEADER] = request_id
        return response

    kinds = (ApiError, BackendError, HTTPException, Exception)
    return dict.fromkeys(kinds, answer) | {ClientDisconnect: _client_is_gone}


async def _client_is_gone(request: Request, exc: Exception) -> None:
    """Nobody is left to answer."""
