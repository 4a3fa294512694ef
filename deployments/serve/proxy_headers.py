"""Headers that Serve's proxy reads as UTF-8, before any application has the request.

Bytes that aren't would be a fault of its own, told in plain text. The gateway's own port reads them
as what they are, and needs none of this.
"""

from __future__ import annotations

from ray.serve._private import constants
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.http.error_responses import error_response
from deployments.http.errors import ApiError


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


READ_BY_SERVE = frozenset(
    map(
        _plain,
        (
            constants.SERVE_HTTP_REQUEST_DISCONNECT_DISABLED_HEADER,
            constants.SERVE_HTTP_REQUEST_ID_HEADER,
            constants.SERVE_HTTP_REQUEST_TIMEOUT_S_HEADER,
            constants.SERVE_MULTIPLEXED_MODEL_ID,
            constants.SERVE_SESSION_ID,
            "traceparent",
        ),
    )
)


class ReadableHeadersMiddleware:
    """Refuses a request with one that Serve could not read."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for raw_name, value in scope.get("headers", ()):
            name = raw_name.decode("latin-1")
            if _plain(name) in READ_BY_SERVE and not _is_utf8(value):
                refusal = ApiError(
                    400, f"The header {name} must be UTF-8.", param=name, code="invalid_header"
                )
                await error_response(refusal)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def middlewares() -> list[Middleware]:
    """What the proxy puts around itself: it asks for them by ``environment``."""
    return [Middleware(ReadableHeadersMiddleware)]
