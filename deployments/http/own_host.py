"""Host check: a server inside the cluster answers to its own addresses and names alone.

A page that has its own name resolve to an address in here makes the browser of a user its client.
"""

from __future__ import annotations

import ipaddress
import socket

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.http.error_responses import error_response
from deployments.http.errors import ApiError, shown


class OwnHostMiddleware:
    """Refuses a request whose ``Host`` is neither the address that it came to, nor ``host``, at
    which the server listens, nor a name of this machine or of loopback."""

    def __init__(self, app: ASGIApp, *, host: str) -> None:
        self.app = app
        self._names = {_plain(host), "localhost", *_machine_names()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_own(scope):
            given = Headers(scope=scope).get("host", "")
            refusal = ApiError(
                403,
                f"The Host header is {shown(given)}, which is no address or name of this server.",
                type="permission_error",
                code="host_not_allowed",
            )
            await error_response(refusal)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _is_own(self, scope: Scope) -> bool:
        name = host_name(Headers(scope=scope).get("host", ""))
        reached = scope.get("server")
        return name in self._names or (reached is not None and name == _plain(reached[0]))


def host_name(host: str) -> str:
    """A ``Host`` header without its port, an address as Python writes it."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return _plain(name)


def _plain(name: str) -> str:
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name.lower().removesuffix(".")
    return str(getattr(address, "ipv4_mapped", None) or address)


def _machine_names() -> set[str]:
    """As it calls itself, and as Bonjour makes it known."""
    name = _plain(socket.gethostname())
    first = name.partition(".")[0]
    return {name, first, f"{first}.local"}
