"""Opening a gateway's port, which Serve's own proxy may have taken."""

from __future__ import annotations

import asyncio
import errno
from http.client import HTTPConnection, HTTPException

from deployments.gateway.port import GatewayPort

ANSWER_TIMEOUT_S = 5.0
HEALTH_PATH, HEALTHY = "/-/healthz", b"success"


async def open_port(port: GatewayPort) -> str:
    """The URL. Raises ``OSError`` naming the address if it is taken, and the remedy if Serve's
    proxy has it."""
    try:
        return await port.open()
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        if not is_taken or not await asyncio.to_thread(_is_serves_proxy, *port.address):
            raise
        message = (
            f"{error.strerror}. Serve's own proxy listens there, which carries no requests to "
            "gateways: set `proxy_location: Disabled` in the config, and start Serve anew, or "
            "choose another gateway.port"
        )
        raise OSError(error.errno, message) from error


def _is_serves_proxy(host: str, port: int) -> bool:
    """Whether what listens there answers at a path as only that does."""
    connection = HTTPConnection(host, port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", HEALTH_PATH)
        return connection.getresponse().read(len(HEALTHY) + 1) == HEALTHY
    except (OSError, HTTPException):
        # Somebody else's server, or none any more.
        return False
    finally:
        connection.close()
