"""Who is let in: by API key, or, while no key is configured, from this machine alone."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.api_keys import KeyRing, is_loopback
from deployments.errors import ApiError, unauthorized

# A proxy in front names the client that it speaks for in one of these.
FORWARDING_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip")


class AdmissionMiddleware:
    """With keys, `/v1/*` needs one of them; without, every path needs a client on loopback.

    Health and metrics stay open when keys are configured: load balancers and Prometheus have none.
    """

    def __init__(
        self, app: ASGIApp, *, keys: KeyRing, on_refused: Callable[[ApiError], None]
    ) -> None:
        self.app = app
        self._keys = keys
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            self._on_refused(refusal)
            await refusal.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        if not self._keys:
            return None if _is_local(scope, headers) else _local_only()
        if not scope["path"].startswith("/v1/"):
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            return unauthorized("An API key is required: send `Authorization: Bearer <key>`.")
        return None if self._keys.accepts(key.strip()) else unauthorized("The API key is wrong.")


def _is_local(scope: Scope, headers: Headers) -> bool:
    client = scope.get("client")
    if client is None or not is_loopback(client[0]):
        return False
    # A proxy on this machine connects from loopback on behalf of anybody.
    return not any(name in headers for name in FORWARDING_HEADERS)


def _local_only() -> ApiError:
    return ApiError(
        403,
        "No API key is configured, so only clients on the same machine are served. "
        "Set gateway.api_keys_file to serve others.",
        type="permission_error",
        code="loopback_only",
    )
