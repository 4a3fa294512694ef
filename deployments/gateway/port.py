"""A gateway's own port for clients, taken from a predecessor and left to a successor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from deployments.gateway.access.error_shapes import shaped_body
from deployments.http.bounded_protocol import ClientTimeouts
from deployments.http.port_claim import PortClaim
from deployments.http.server import HttpServer

PATIENCE_S = 30.0
"""For a stranger to leave a port."""
CLAIM_PATIENCE_S = 10.0
"""For another gateway of this host. One that is to leave was told when its successor's process was
started; one that is to stay keeps a second one from a host that has none."""


class GatewayPort:
    """Serves ``app``, whose ``state.draining`` tells load balancers to go elsewhere."""

    def __init__(
        self,
        app: Starlette,
        *,
        node: str,
        host: str | None,
        port: int,
        is_alone: Callable[[], bool],
        timeouts: ClientTimeouts | None = None,
    ) -> None:
        host = host or node
        self.address = (host, port)
        self._app = app
        self._claim = PortClaim(node=node, host=host, port=port) if port else None
        self._server = HttpServer(
            self._serve,
            host=host,
            port=port,
            timeouts=timeouts,
            error_body=shaped_body,
        )
        self._is_alone = is_alone
        self._is_leaving = False

    async def open(self) -> str:
        """The URL. Raises ``OSError`` naming the address if a stranger has the port, or a gateway
        of this host that does not drain."""
        if self._claim is None:
            return await self._server.start()
        listener = await self._claim.take(patience_s=CLAIM_PATIENCE_S)
        try:
            url = await self._server.start(patience_s=PATIENCE_S, listener=listener)
        except OSError:
            self._claim.release()
            raise
        self._claim.listening()
        return url

    def check_health(self) -> None:
        """Raises ``RuntimeError`` when clients are served no more."""
        self._server.check_health()

    async def leave(self, *, notice_s: float) -> None:
        """Go on taking requests, until load balancers have had time to notice that this gateway
        is to end, or a successor listens."""
        self._is_leaving = True
        # A load balancer that has one gateway only would refuse what both of them can serve.
        self._app.state.draining = not self._is_alone()
        if self._claim is None:
            await asyncio.sleep(notice_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(notice_s):
                await self._claim.hand_over(self._server.listener)

    async def close(self, *, timeout_s: float) -> None:
        """Stop listening; return when the last response has ended, or been cut."""
        await self._server.stop(timeout_s=timeout_s)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start" and self._is_leaving:
                # Or a client would pick an idle connection just when it is closed.
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, receive, send_last)
