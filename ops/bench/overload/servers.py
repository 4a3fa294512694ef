"""An engine with the demo model and a gateway in front of it, each a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from deployments.backend import EngineConfig
from deployments.backend.apart import EngineProcess
from deployments.fleet.directory import Replica
from deployments.http.server import HttpServer
from deployments.observe.metrics import EngineMetrics, Identity
from deployments.replica.app import build_replica_app
from ops.bench.relay.servers import HOST, SECRET, process, serve_gateway

# The other cores are for whoever talks HTTP, as on a Mac, whose GPU is the engine's alone.
ONE_CORE = {"POMONA_BLAS_THREADS": "1", "POMONA_CPU_THREADS": "1"}


@dataclass(frozen=True)
class Sample:
    """What the servers held ``at`` so many seconds, by the name of the process."""

    at: float
    resident_bytes: dict[str, int]
    open_files: dict[str, int]
    metrics: dict[str, float]
    """The engine's."""


@dataclass(frozen=True)
class Running:
    """``engine`` and ``gateway`` are base URLs; ``processes`` theirs, by name."""

    engine: str
    gateway: str
    model: str
    processes: dict[str, psutil.Process]

    async def sample(self, at: float) -> Sample:
        async with aiohttp.request("GET", f"{self.engine}/metrics") as response:
            text = await response.text()
        return Sample(
            at,
            {name: resident_bytes(process) for name, process in self.processes.items()},
            {name: process.num_fds() for name, process in self.processes.items()},
            {
                sample.name: sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            },
        )


def resident_bytes(process: psutil.Process) -> int:
    """Of it and what it has started: an engine is in a process of its own."""
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))


async def serve_engine(config: EngineConfig, environment: Mapping[str, str]) -> Replica:
    # Before anything imports MLX.
    os.environ.update(environment)
    backend = EngineProcess(config.backend)
    model = await backend.start(config)
    metrics = EngineMetrics(backend.stats, Identity(model=model.name, replica="engine", node=HOST))
    app = build_replica_app(
        backend=backend,
        model=model,
        secret=SECRET,
        registry=metrics.registry,
        on_failure=metrics.failed,
        max_body_bytes=1 << 20,
        keep_alive_interval_s=5.0,
    )
    url = await HttpServer(app, host=HOST, port=0).start()
    return Replica("engine", HOST, url, model.name, model.max_model_len, SECRET)


@contextmanager
def apart(*, first: bool) -> Iterator[None]:
    """This thread, and the processes that it starts, on the first of its cores or on all others.

    Where there is one core, or the system is not Linux, it stays as it was.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) == 1:
        yield
        return
    before = os.sched_getaffinity(0)
    one = {min(before)}
    os.sched_setaffinity(0, one if first else before - one)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def engine_and_gateway(config: EngineConfig, *, cores_apart: bool = True) -> Iterator[Running]:
    """``cores_apart``: the engine has one core, and whoever else runs in the block the gateway's,
    which are all others."""
    with ExitStack() as stack:
        environment = ONE_CORE if cores_apart else {}
        with apart(first=True) if cores_apart else nullcontext():
            replica, engine = stack.enter_context(process(serve_engine, config, environment))
        if cores_apart:
            stack.enter_context(apart(first=False))
        gateway, relaying = stack.enter_context(process(serve_gateway, [replica]))
        processes = {"engine": engine, "gateway": relaying}
        yield Running(replica.url, gateway, replica.model, processes)
