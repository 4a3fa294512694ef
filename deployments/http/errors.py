"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deployments.backend import (
    BackendError,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    UnavailableError,
)

UNAVAILABLE_RETRY_AFTER_S = 1
FAILURE_HEADER = "X-Pomona-Failure"
"""A ``FailureKind``, on an error of a replica: what its gateway goes by, and clients don't see."""
SHOULD_RETRY = "X-Should-Retry"
NO_RETRY_CURES = frozenset({400, 401, 403, 404, 413, 415, 422})
MAX_SHOWN_CHARS = 80


def cut(text: str) -> str:
    """``text`` at a length that fits in a message, however much a client has sent."""
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


def shown(value: object) -> str:
    """A value as JSON, cut; of one with a million members only the first are looked at."""
    text = ""
    for piece in json.JSONEncoder().iterencode(value):
        text += piece
        if len(text) > MAX_SHOWN_CHARS:
            break
    return cut(text)


def _with_retry(status: int, headers: dict[str, str]) -> dict[str, str]:
    """With what the vendors' clients go by, unless somebody has said it."""
    names = {name.lower() for name in headers}
    if SHOULD_RETRY.lower() not in names:
        if "retry-after" in names:
            headers[SHOULD_RETRY] = "true"
        elif status in NO_RETRY_CURES:
            headers[SHOULD_RETRY] = "false"
    return headers


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
        self.headers = _with_retry(status, dict(headers or {}))

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
    status, param = 500, None
    headers: dict[str, str] = {FAILURE_HEADER: exc.failure} if exc.failure else {}
    match exc:
        case InvalidRequestError():
            status, param = 400, exc.param
        case PromptTooLongError():
            status = 429
        case QueueFullError():
            status, headers["Retry-After"] = 429, str(exc.retry_after)
        case UnavailableError():
            status, headers["Retry-After"] = 503, str(UNAVAILABLE_RETRY_AFTER_S)
    return ApiError(
        status, str(exc), type=exc.error_type, param=param, code=exc.code, headers=headers
    )
