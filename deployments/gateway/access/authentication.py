"""Authentication: by API key, or, while no key is configured, from this machine alone.

The scope of a request that a key let in has that key, for limits and logs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.gateway.access.api_keys import SCOPE_KEY, Keys, is_loopback
from deployments.gateway.access.cross_origin import is_allowed
from deployments.gateway.access.error_shapes import shaped_response
from deployments.http.errors import ApiError, shown, unauthorized
from deployments.http.own_host import host_name

# A proxy in front names the client that it speaks for in one of these.
FORWARDING_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip")
# Load balancers and Prometheus have no key.
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/targets"})
# The page asks its user for a key; its files are in every copy of this package.
PAGE_PATH, PAGE_FILES = "/", "/page/"


class AuthenticationMiddleware:
    """With keys, all but a few paths need one of them; without, every path needs a client on
    loopback that calls this machine by a name of loopback.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys,
        on_refused: Callable[[Scope, ApiError], None],
        allowed_origins: Sequence[str] = (),
    ) -> None:
        self.app = app
        self._keys = keys
        self._on_refused = on_refused
        self._allowed_origins = allowed_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            self._on_refused(scope, refusal)
            await shaped_response(refusal, scope)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        if not self._keys:
            return _unless_local(scope, headers) or self._unless_own_page(headers)
        path = scope["path"]
        # Agents look without their key whether anybody is there.
        if path in OPEN_PATHS or _is_page(scope["method"], path):
            return None
        presented = _presented(headers)
        if not presented:
            return unauthorized(
                "An API key is required: send `Authorization: Bearer <key>`, or `x-api-key: <key>`."
            )
        found = next(filter(None, map(self._keys.find, presented)), None)
        if found is None:
            return unauthorized("The API key is wrong.")
        scope[SCOPE_KEY] = found
        return None

    def _unless_own_page(self, headers: Headers) -> ApiError | None:
        """Where no key is asked for, any page could have the browser of a user here send requests,
        though it could not read the answers."""
        origin = headers.get("origin")
        if origin is None or is_allowed(origin, self._allowed_origins):
            return None
        if origin.partition("://")[2] == headers.get("host"):
            return None
        return _refused(
            f"Pages from {shown(origin)} may not call this server; "
            "add the origin to gateway.allowed_origins to let them.",
            code="origin_not_allowed",
        )


def _is_page(method: str, path: str) -> bool:
    return method in ("GET", "HEAD") and (path == PAGE_PATH or path.startswith(PAGE_FILES))


def _presented(headers: Headers) -> list[str]:
    """OpenAI's clients send a key in the one header, Anthropic's in either, and some in both."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    keys = [bearer if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
    return [key.strip() for key in keys if key.strip()]


def _unless_local(scope: Scope, headers: Headers) -> ApiError | None:
    client = scope.get("client")
    # A proxy on this machine connects from loopback on behalf of anybody.
    forwarded = any(name in headers for name in FORWARDING_HEADERS)
    if client is None or not is_loopback(client[0]) or forwarded:
        return _refused(
            "No API key is configured, so only clients on the same machine are served. "
            "Set gateway.api_keys_file to serve others.",
            code="loopback_only",
        )
    host = headers.get("host", "")
    name = host_name(host)
    if not (name == "localhost" or name.endswith(".localhost") or is_loopback(name)):
        # A page that has its own name resolve to 127.0.0.1 makes the user's browser its client.
        return _refused(
            f"No API key is configured, so the Host header must be localhost or a loopback "
            f"address, not {shown(host)}. Use http://127.0.0.1, or set gateway.api_keys_file.",
            code="host_not_allowed",
        )
    return None


def _refused(message: str, *, code: str) -> ApiError:
    return ApiError(403, message, type="permission_error", code=code)
