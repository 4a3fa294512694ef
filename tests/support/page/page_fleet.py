"""A gateway with its page and some engines, in a thread of their own, for browsers to look at."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx
import pytest
from prometheus_client import CollectorRegistry

from deployments.backend import EngineConfig
from deployments.fleet.directory import Replica
from deployments.gateway.watch import watch
from deployments.http.server import HttpServer
from deployments.observe.host.reading import (
    MEMORY_AVAILABLE,
    MEMORY_PRESSURE,
    MEMORY_TOTAL,
    THERMAL_PRESSURE,
    Reading,
)
from deployments.replica.app import build_replica_app
from deployments.replica.reading import HostReader
from tests.support.deployments.gateway_harness import SECRET, Running, gateway, replica_at
from tests.support.page.told_backend import ToldBackend

PATIENCE_S = 60
MODEL = "demo"
REVISION = "0123456789abcdef"
CHIPS = ("Apple M1", "Apple M4", "Apple M2 Ultra")

T = TypeVar("T")


@dataclass
class Engine:
    backend: ToldBackend
    server: HttpServer
    replica: Replica


class PageFleet:
    """Its methods may be called from any thread but the loop's."""

    def __init__(
        self, running: Running, engines: Sequence[Engine], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.running = running
        self.engines = list(engines)
        self._loop = loop

    @property
    def url(self) -> str:
        return self.running.url

    def do(self, what: Coroutine[Any, Any, T]) -> T:
        """Run it in the loop."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)

    def call(self, what: Callable[[], T]) -> T:
        async def called() -> T:
            return what()

        return self.do(called())

    def says(self, answer: str | Callable[[str], str]) -> None:
        """From now on that is what every engine answers."""
        told = answer if callable(answer) else lambda question: answer
        for engine in self.engines:
            engine.backend.says = told

    def reset(self) -> None:
        """As it was in the beginning; engines that were killed stay dead."""
        for engine in self.engines:
            self.call(engine.backend.let_go)
            engine.backend.pause_s = 0.0
        self.says(lambda question: f"You said: {question}")

    def deploy(self, number: int, revision: str) -> Engine:
        """An engine of another revision takes the place of the one that ``number`` has now."""
        new = self.do(_engine(number, f"engine-{len(self.engines) + 1}", revision))
        node = new.replica.node
        old = next(one for one in reversed(self.engines) if one.replica.node == node)
        there = [one for one in self.running.directory.replicas if one.node != node]
        self.running.directory.replace(there)
        self._wait_until(old, "draining")
        self.kill(old)
        self._wait_until(old, "left")
        self.running.directory.replace([*there, new.replica])
        self.engines.append(new)
        new.backend.says, new.backend.pause_s = old.backend.says, old.backend.pause_s
        return new

    def _wait_until(self, engine: Engine, state: str) -> None:
        """Until the gateway says so."""
        told = ""
        while told != state:
            hosts = httpx.get(f"{self.url}/v1/fleet", timeout=PATIENCE_S).json()["hosts"]
            engines = {one["id"]: one["state"] for host in hosts for one in host["engines"]}
            told = engines[engine.replica.replica_id]

    def serving(self) -> Engine:
        """The one that has a request."""
        return next(one for one in self.engines if one.backend.live.value)

    def kill(self, engine: Engine) -> None:
        """Its connections break, and nobody is at its port any more. Serve has not noticed yet."""
        self.do(engine.server.stop(timeout_s=0))


@contextmanager
def page_fleet(num_engines: int = 1, **gateway_options: Any) -> Iterator[PageFleet]:
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    made: list[PageFleet] = []

    async def serve() -> None:
        try:
            async with _fleet(num_engines, gateway_options, loop) as fleet:
                made.append(fleet)
                started.set()
                await stop.wait()
        finally:
            started.set()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    with pytest.MonkeyPatch.context() as patched:
        # A busy machine answers late, and a reading that is given up is missing in the view.
        patched.setattr(watch, "ANSWERS_WITHIN_S", PATIENCE_S)
        thread.start()
        try:
            assert started.wait(PATIENCE_S)
            yield made[0]
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(PATIENCE_S)
            loop.close()


@asynccontextmanager
async def _fleet(
    num_engines: int, gateway_options: dict[str, Any], loop: asyncio.AbstractEventLoop
) -> AsyncIterator[PageFleet]:
    engines = [await _engine(number) for number in range(1, num_engines + 1)]
    replicas = [one.replica for one in engines]
    async with gateway(replicas, watches=True, **gateway_options) as running:
        fleet = PageFleet(running, engines, loop)
        yield fleet
        for one in fleet.engines:
            one.backend.let_go()
    for one in fleet.engines:
        await one.server.stop(timeout_s=0)


async def _engine(number: int, name: str = "", revision: str = REVISION) -> Engine:
    """On the host with that number."""
    backend = ToldBackend()
    config = EngineConfig.model_validate({"model": MODEL, "max_num_seqs": 16})
    model = await backend.start(config)
    app = build_replica_app(
        backend=backend,
        model=model,
        secret=SECRET,
        registry=CollectorRegistry(),
        on_failure=lambda error_type: None,
        max_body_bytes=1 << 20,
        keep_alive_interval_s=0.05,
        max_num_seqs=config.max_num_seqs,
        host=HostReader(lambda: _readings(number), CHIPS[number % 3], f"mini-{number}.local"),
    )
    server = HttpServer(app, host="127.0.0.1", port=0)
    replica = replica_at(await server.start(), name=name or f"engine-{number}")
    replica = replace(replica, node=f"10.0.0.{number}", revision=revision)
    return Engine(backend, server, replica)


def _readings(number: int) -> list[Reading]:
    total = 16 << 30 << number % 3
    return [
        Reading(MEMORY_TOTAL, total),
        Reading(MEMORY_AVAILABLE, total // (2 + number)),
        Reading(MEMORY_PRESSURE, number // 3),
        Reading(THERMAL_PRESSURE, number % 2),
    ]
