"""Two gateways and two engines with a tiny model, as if on three hosts, on loopback, behind a real
HAProxy that a heartbeat asks, and a real Prometheus that scrapes them all.

``python -m tests.support.ops.live_cluster DIRECTORY`` runs it for a while under load and draws the
dashboards into DIRECTORY.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from backend_metal.backend import MlxBackend  # isort: skip
import httpx
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from deployments.backend import EngineConfig
from deployments.fleet.directory import Replica, ReplicaDirectory
from deployments.fleet.targets import GatewayAddress
from deployments.gateway.access.api_keys import ApiKey, KeyRing
from deployments.gateway.app import GatewayParts, build_gateway_app
from deployments.gateway.relay.connections import ReplicaConnections
from deployments.gateway.replicas.table import ReplicaTable
from deployments.gateway.responses.memory import MemoryStore
from deployments.gateway.responses.shared import SharedStore
from deployments.gateway.responses.store import ResponseStore
from deployments.gateway.routing import build_router
from deployments.observe.host.collector import HostCollector, host_sources
from deployments.observe.host.reading import (
    GPU_UTILIZATION,
    MEMORY_PRESSURE,
    TEMPERATURE,
    THERMAL_PRESSURE,
    Reading,
    Source,
)
from deployments.observe.metrics import EngineMetrics, GatewayMetrics, Identity
from deployments.replica.app import build_replica_app
from deployments.settings import GatewaySettings, RoutingSettings
from ops.heartbeat.heart import Heart
from ops.heartbeat.metrics import HeartbeatMetrics
from tests.support.backend_metal import tiny_models
from tests.support.deployments.gateway_harness import SECRET, serving
from tests.support.ops.balancer_harness import balancing, plan_for

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "ops" / "prometheus" / "prometheus.yml"
NODES = ("10.0.0.2", "10.0.0.3")
GATEWAY_NODES = ("10.0.0.2", "10.0.0.4")
"""One has an engine beside it."""
SCRAPE_S = 0.5
API_KEY = "a-key-of-the-live-cluster"


@dataclass
class Cluster:
    gateways: list[str]
    replicas: list[Replica]
    watchers: dict[str, str]
    """Where else Prometheus asks, by the name of its job."""

    @property
    def targets_url(self) -> str:
        return f"{self.gateways[0]}/targets"


def host_of(node: str) -> HostCollector:
    """What the machine tells, and what one that has all sensors would tell."""
    ticks = count()

    def read() -> Iterator[Reading]:
        wave = math.sin(next(ticks) + int(node[-1]))
        yield Reading(GPU_UTILIZATION, 0.6 + 0.3 * wave)
        yield Reading(MEMORY_PRESSURE, float(wave > 0.9))
        yield Reading(THERMAL_PRESSURE, float(wave > 0.7))
        yield Reading(TEMPERATURE, 60 + 10 * wave, "package-0")

    return HostCollector(node, [*host_sources(ROOT), Source("sensors", read)])


@contextmanager
def host_metrics(registry: CollectorRegistry, node: str) -> Iterator[None]:
    host = host_of(node)
    registry.register(host)
    host.start()
    try:
        yield
    finally:
        host.stop()


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    # With windows, which have panels of their own.
    tiny_models.save("gemma3_text", directory)
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(_replica(directory, f"replica-{number}", node))
            for number, node in enumerate(NODES)
        ]
        addresses: list[GatewayAddress] = []
        store = MemoryStore(max_bytes=1 << 20, max_bytes_per_key=1 << 20, max_age_s=60)
        for number, node in enumerate(GATEWAY_NODES):
            url = await stack.enter_async_context(
                _gateway(f"gateway-{number}", node, replicas, addresses, store)
            )
            addresses.append(GatewayAddress(f"gateway-{number}", node, url))
        urls = [address.url for address in addresses]
        plan = plan_for(directory, [url.removeprefix("http://") for url in urls])
        balancer = await stack.enter_async_context(balancing("haproxy", plan))
        for address in plan.gateways:
            await balancer.sees(address, "UP")
        key_file = directory / "api_key"
        key_file.write_text(API_KEY)
        heartbeat = await stack.enter_async_context(_heartbeat(balancer.url, key_file))
        yield Cluster(urls, replicas, {"balancers": plan.status, "heartbeat": heartbeat})


@asynccontextmanager
async def _replica(directory: Path, name: str, node: str) -> AsyncIterator[Replica]:
    backend = MlxBackend()
    info = await backend.start(
        EngineConfig(
            model=str(directory),
            served_model_name="demo",
            device="cpu",
            num_kv_blocks=96,
            max_num_seqs=8,
            max_num_batched_tokens=128,
        )
    )
    metrics = EngineMetrics(backend.stats, Identity("demo", name, node), info.attention)
    app = build_replica_app(
        backend=backend,
        model=info,
        secret=SECRET,
        registry=metrics.registry,
        on_failure=metrics.failed,
        max_body_bytes=1 << 20,
        keep_alive_interval_s=5.0,
    )
    try:
        with host_metrics(metrics.registry, node):
            async with serving(app) as url:
                yield Replica(name, node, url, "demo", info.max_model_len, SECRET)
    finally:
        await backend.stop()


@asynccontextmanager
async def _gateway(
    name: str,
    node: str,
    replicas: Sequence[Replica],
    addresses: Sequence[GatewayAddress],
    store: ResponseStore,
) -> AsyncIterator[str]:
    async def everybody() -> Sequence[GatewayAddress]:
        return addresses

    metrics = GatewayMetrics(replica=name, node=node)
    routing = RoutingSettings()
    responses = SharedStore(store, metrics.stored_responses)
    reading = asyncio.create_task(responses.read_for_ever(every_s=SCRAPE_S))
    with closing(ReplicaConnections()) as connections:
        app = build_gateway_app(
            GatewayParts(
                settings=GatewaySettings(),
                keys=KeyRing([ApiKey.of("clients", API_KEY)]),
                replicas=ReplicaTable(
                    ReplicaDirectory(replicas), load_half_life_s=routing.load_half_life_s
                ),
                router=build_router(routing),
                metrics=metrics,
                connections=connections,
                gateways=everybody,
                responses=responses,
            )
        )
        with host_metrics(metrics.registry, node):
            async with serving(app) as url:
                yield url
    reading.cancel()


@asynccontextmanager
async def _heartbeat(url: str, key_file: Path) -> AsyncIterator[str]:
    """Beats faster than it is generated to. Yields the address of its metrics."""
    metrics = HeartbeatMetrics()
    heart = Heart([url], ["demo"], metrics, key_file, interval_s=SCRAPE_S)
    server, thread = start_http_server(0, "127.0.0.1", metrics.registry)
    beating = asyncio.create_task(heart.run())
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        server.shutdown()
        server.server_close()
        thread.join()


async def load(running: Cluster, *, seconds: float, at_once: int) -> None:
    """Streams of a few documents with different questions, some whole answers, some mistakes."""
    rng = random.Random(0)
    documents = [rng.randbytes(200).hex() for _ in range(6)]
    until = time.monotonic() + seconds

    async def client(number: int) -> None:
        headers = {"Authorization": f"Bearer {API_KEY}"}
        async with httpx.AsyncClient(timeout=60, headers=headers) as http:
            while time.monotonic() < until:
                body: dict[str, Any] = {
                    "model": "demo",
                    "prompt": rng.choice(documents)[:400] + rng.randbytes(20).hex(),
                    "max_tokens": rng.randint(8, 48),
                    "stream": rng.random() < 0.8,
                    "ignore_eos": rng.random() < 0.7,
                }
                if rng.random() < 0.05:
                    body["temperature"] = 9
                await http.post(f"{running.gateways[number % 2]}/v1/completions", json=body)
                await asyncio.sleep(rng.random() * 0.05)

    await asyncio.gather(*(client(number) for number in range(at_once)))


@contextmanager
def prometheus(directory: Path, running: Cluster) -> Iterator[str]:
    """The shipped configuration and rules, looked at more often. Yields its URL."""
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = {"scrape_interval": f"{int(SCRAPE_S * 1000)}ms", "evaluation_interval": "1s"}
    config["rule_files"] = [str(CONFIG.parent / name) for name in config["rule_files"]]
    config["alerting"] = {}
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    jobs["pomona"]["http_sd_configs"][0]["url"] = running.targets_url
    for name, address in running.watchers.items():
        jobs[name].pop("file_sd_configs")
        jobs[name]["static_configs"] = [{"targets": [address]}]
    config["scrape_configs"] = [jobs["pomona"], *(jobs[name] for name in running.watchers)]
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={path}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(30)


async def main(images: Path, seconds: float = 75.0) -> None:
    from ops.grafana.__main__ import DASHBOARDS
    from ops.grafana.render import Prometheus, ask_all, draw

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with cluster(directory / "model") as running:
            with prometheus(directory, running) as url:
                await load(running, seconds=seconds, at_once=12)
                end = time.time()
                for dashboard in DASHBOARDS:
                    answers = await asyncio.to_thread(
                        ask_all, dashboard, Prometheus(url, rate_interval="12s"), end
                    )
                    draw(dashboard, answers, images / f"{dashboard.uid.split('-')[1]}.png")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
