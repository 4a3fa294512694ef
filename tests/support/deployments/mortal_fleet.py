"""Replicas whose processes die, with all of their connections, and are replaced by new ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.fleet.directory import Replica
from deployments.wire.failure import FAILURE_HEADER
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import Running, replica_app, replica_at, serving

POISON = "poison"
KILLS_AT = 4
"""The token with which a request that says ``POISON`` kills."""


@dataclass
class Host:
    """A replica's process."""

    app: ASGIApp
    backend: FakeBackend
    replica: Replica | None = None
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    num_present: int = 0
    num_killed: int = 0
    """Requests that it had when it died."""

    def die(self) -> None:
        if not self.dead.is_set():
            self.num_killed = self.num_present
            self.dead.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        if self.dead.is_set():
            # As good as a port where nobody listens.
            headers = [(FAILURE_HEADER.encode(), b"sick")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        self.num_present += 1
        try:
            await self._serve(scope, receive, send)
        finally:
            self.num_present -= 1

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        poisonous = started = False
        num_tokens = 0

        async def receive_here() -> Message:
            nonlocal poisonous, num_tokens
            message = await receive()
            body = message.get("body", b"")
            if POISON.encode() in body:
                poisonous = True
                # What the log has, the process has survived.
                num_tokens = body.count(b"0:")
            return message

        async def send_here(message: Message) -> None:
            nonlocal num_tokens, started
            started = True
            num_tokens += message.get("body", b"").count(b"0:")
            if poisonous and num_tokens >= KILLS_AT:
                self.die()
                await asyncio.Event().wait()
            await send(message)

        serving = asyncio.ensure_future(self.app(scope, receive_here, send_here))
        dying = asyncio.ensure_future(self.dead.wait())
        await asyncio.wait({serving, dying}, return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if self.dead.is_set():
            serving.cancel()
            if not started:
                # Otherwise the server would say something.
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
            raise ConnectionAbortedError("the process has died")
        serving.result()


class MortalFleet:
    """``size`` hosts behind a gateway; each that dies leaves the gateway's list."""

    def __init__(self, running: Running, stack: AsyncExitStack, delay_s: float) -> None:
        self._running = running
        self._stack = stack
        self._delay_s = delay_s
        self._num_started = 0
        self.hosts: list[Host] = []
        """Those that live."""
        self.fallen: list[Host] = []
        """In the order in which they fell."""

    async def start_one(self) -> None:
        backend = FakeBackend()
        host = Host(
            await replica_app(backend, options={"delay_s": self._delay_s}, max_num_seqs=64), backend
        )
        url = await self._stack.enter_async_context(serving(host))
        self._num_started += 1
        host.replica = replica_at(url, name=f"host-{self._num_started}")
        self.hosts.append(host)
        self.list()

    def kill(self, host: Host) -> None:
        """It dies; its requests notice, and the gateway's list does."""
        host.die()
        self.hosts.remove(host)
        self.fallen.append(host)
        self.list()

    def list(self) -> None:
        self._running.directory.replace([host.replica for host in self.hosts if host.replica])

    async def replace_each(self) -> None:
        """Whoever dies from now on is replaced."""
        while True:
            dying = {asyncio.ensure_future(host.dead.wait()): host for host in self.hosts}
            try:
                dead, _ = await asyncio.wait(dying, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for waiting in dying:
                    waiting.cancel()
            for one in dead:
                self.kill(dying[one])
                await self.start_one()


@asynccontextmanager
async def mortal_fleet(
    running: Running, size: int, *, delay_s: float = 0.002
) -> AsyncIterator[MortalFleet]:
    async with AsyncExitStack() as stack:
        fleet = MortalFleet(running, stack, delay_s)
        for _ in range(size):
            await fleet.start_one()
        yield fleet
        for host in [*fleet.hosts, *fleet.fallen]:
            await host.backend.stop()
