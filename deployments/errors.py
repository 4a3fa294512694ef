"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from deployments.backend import (
    BackendError,
    InvalidRequestError,
    QueueFullError,
    UnavailableError,
)
from deployments.request_id import REQUEST_ID_HEADER, SCOPE_KEY

UNAVAILABLE_RETRY_AFTER_S = 1
MAX_SHOWN_CHARS = 80


def cut(text: str) -> str:
    """``text`` at a length that fits in a message, however much a client has sent."""
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


def shown(value: object) -> str:
    """A value as JSON, cut."""
    return cut(json.dumps(value))


class ApiError(Exception):
    """What a client is told. ``param`` names the field at fault, ``code`` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def json(self) -> bytes:
        # ASCII, since a message may quote text that UTF-8 can't encode: lone surrogates.
        return json.dumps(self.body(), separators=(",", ":")).encode("ascii")

    def response(self) -> Response:
        return Response(self.json(), self.status, self.headers, "application/json")


def unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def model_not_found(name: str) -> ApiError:
    message = f"The model {shown(name)} does not exist."
    return ApiError(404, message, param="model", code="model_not_found")


def unknown_url(method: str, path: str) -> ApiError:
    return ApiError(404, f"Unknown URL: {method} {cut(path)}", code="unknown_url")


def body_too_large(max_body_bytes: int) -> ApiError:
    return ApiError(
        413, f"The request body is larger than {max_body_bytes} bytes.", code="body_too_large"
    )


def internal_error() -> ApiError:
    return ApiError(500, "The server had an error.", type="server_error", code="internal_error")


def api_error_from(exc: BackendError) -> ApiError:
    """The status and shape of a backend's refusal or fault."""
    status, headers, param = 500, {}, None
    match exc:
        case InvalidRequestError():
            status, param = 400, exc.param
        case QueueFullError():
            status, headers = 429, {"Retry-After": str(exc.retry_after)}
        case UnavailableError():
            status, headers = 503, {"Retry-After": str(UNAVAILABLE_RETRY_AFTER_S)}
    return ApiError(
        status, str(exc), type=exc.error_type, param=param, code=exc.code, headers=headers
    )


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


def exception_handlers(on_error: Callable[[ApiError], None]) -> dict[Any, Any]:
    """Starlette's, for an app whose errors ``on_error`` hears of, each once."""

    async def answer(request: Request, exc: Exception) -> Response:
        error = told(request, exc)
        on_error(error)
        response = error.response()
        # A fault is answered outside of the middlewares, then raised again for the log.
        if request_id := request.scope.get(SCOPE_KEY):
            response.headers[REQUEST_ID_HEADER] = request_id
        return response

    kinds = (ApiError, BackendError, HTTPException, Exception)
    return dict.fromkeys(kinds, answer) | {ClientDisconnect: _client_is_gone}


async def _client_is_gone(request: Request, exc: Exception) -> None:
    """Nobody is left to answer."""
