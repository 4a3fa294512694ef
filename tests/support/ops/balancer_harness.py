"""Real HAProxy and nginx on loopback, and gateways that do what a test tells them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from deployments.http.server import HttpServer
from ops.load_balancer.foreground import start, write
from ops.load_balancer.plan import Plan

BALANCERS = ("haproxy", "nginx")
PATH = "/v1/chat/completions"
DEADLINE_S = 30.0
VANISH = "vanish"


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        shutil.which(tool) is None and "CI" not in os.environ,
        reason=f"{tool} is not installed: it is a package of Debian's",
    )


each_balancer = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=needs(kind)) for kind in BALANCERS]
)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class FakeGateway:
    """Answers ``/ready`` by ``is_ready``, and anything else by ``answer`` or, with ``streams``, by
    events that a test sends one by one."""

    name: str = "gateway"
    is_ready: bool = True
    streams: bool = False
    answer: Response | None = None
    """None: the name of the gateway."""
    requests: list[Received] = field(default_factory=list)
    events: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)
    """None ends the stream, and ``VANISH`` breaks it off."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """A client left before its answer had ended."""
    address: str = field(default_factory=free_address)
    _server: HttpServer | None = None

    async def start(self) -> None:
        host, _, port = self.address.partition(":")
        self._server = HttpServer(self, host=host, port=int(port))
        await self._server.start()

    async def stop(self) -> None:
        """Refuses connections from now on; running streams must have been told to end."""
        if self._server is not None:
            await self._server.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            response = await self._respond(Request(scope, receive))
            try:
                await response(scope, receive, send)
            except asyncio.CancelledError:
                self.gone.set()
                raise

    async def _respond(self, request: Request) -> Response:
        path = request.url.path
        if path == "/ready" and request.headers.get("host") == "pomona":
            return Response(status_code=200 if self.is_ready else 503)
        self.requests.append(Received(path, dict(request.headers), await request.body()))
        if self.streams:
            return StreamingResponse(self._stream(), media_type="text/event-stream")
        return self.answer or JSONResponse({"gateway": self.name})

    async def _stream(self) -> AsyncIterator[str]:
        try:
            while (event := await self.events.get()) is not None:
                if event == VANISH:
                    raise ConnectionAbortedError("the gateway vanishes")
                yield f"data: {event}\n\n"
        except asyncio.CancelledError:
            self.gone.set()
            raise


@asynccontextmanager
async def gateways(count: int) -> AsyncIterator[list[FakeGateway]]:
    made = [FakeGateway(name=f"gateway-{number}") for number in range(count)]
    for one in made:
        await one.start()
    try:
        yield made
    finally:
        for one in made:
            one.events.put_nowait(None)
            await one.stop()


@dataclass
class Balancer:
    kind: str
    plan: Plan
    process: subprocess.Popen[bytes]
    log: Path
    client: httpx.AsyncClient

    @property
    def url(self) -> str:
        return f"{'https' if self.plan.certificate else 'http'}://{self.plan.listen[0]}"

    async def ask(self, **options: Any) -> httpx.Response:
        return await self.client.post(PATH, **({"json": {}} | options))

    def logged(self) -> str:
        """HAProxy's notices and access log, or nginx' access log."""
        path = self.log if self.kind == "haproxy" else self.plan.directory / "pomona-access.log"
        return path.read_text()

    def reload(self, plan: Plan) -> None:
        """Have the balancer go on with another configuration."""
        self.plan = plan
        write(self.kind, plan)
        self.process.send_signal(signal.SIGUSR2 if self.kind == "haproxy" else signal.SIGHUP)

    async def states(self) -> dict[str, str]:
        """HAProxy's gateways: address to UP, DOWN, or on its way."""
        async with httpx.AsyncClient() as client:
            table = (await client.get(f"http://{self.plan.status}/;csv")).text.splitlines()
        names = table[0].lstrip("# ").split(",")
        rows = [dict(zip(names, line.split(","), strict=False)) for line in table[1:]]
        servers = [row for row in rows if row["pxname"] == "gateways"]
        return {row["svname"]: row["status"] for row in servers if row["svname"] != "BACKEND"}

    async def sees(self, address: str, state: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while (await self.states())[address] != state:
                await asyncio.sleep(0.02)


def plan_for(directory: Path, gateways: Sequence[FakeGateway | str], **changes: Any) -> Plan:
    plan = Plan(
        gateways=[one if isinstance(one, str) else one.address for one in gateways],
        listen=[free_address()],
        status=free_address(),
        directory=directory,
    )
    return replace(plan, **changes)


@asynccontextmanager
async def balancing(kind: str, plan: Plan, **client: Any) -> AsyncIterator[Balancer]:
    log = plan.directory / f"{kind}.log"
    process = start(kind, plan, log)
    try:
        await until(lambda: process.poll() is not None or _is_up(kind, plan, log))
        assert process.poll() is None, log.read_text()
        scheme = "https" if plan.certificate else "http"
        options = {"base_url": f"{scheme}://{plan.listen[0]}", "timeout": DEADLINE_S} | client
        async with httpx.AsyncClient(**options) as http:
            yield Balancer(kind, plan, process, log, http)
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def _is_up(kind: str, plan: Plan, log: Path) -> bool:
    # HAProxy's workers accept before its first process takes the signal to reload.
    takes_signals = kind != "haproxy" or "Loading success" in log.read_text()
    return takes_signals and _accepts(plan.listen[0])


def _accepts(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
