"""Two gateways and two engines with a tiny model, as if on three hosts, on loopback, and a real
Prometheus that scrapes them.

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

from backend_metal.backend import MetalBackend  # isort: skip
import httpx
import yaml
from prometheus_client import CollectorRegistry

from deployments.backend import EngineConfig
from deployments.fleet.directory import Replica, ReplicaDirectory
from deployments.fleet.targets import GatewayAddress
from deployments.gateway.access.api_keys import KeyRing
from deployments.gateway.app import GatewayParts, build_gateway_app
from deployments.gateway.replicas.table import ReplicaTable
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
from deployments.serve.gateway import replica_connections
from deployments.settings import GatewaySettings, RoutingSettings
from tests.support.backend_metal import tiny_models
from tests.support.deployments.gateway_harness import SECRET, serving

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "ops" / "prometheus" / "prometheus.yml"
NODES = ("10.0.0.2", "10.0.0.3")
GATEWAY_NODES = ("10.0.0.2", "10.0.0.4")
"""One has an engine beside it."""
SCRAPE_S = 0.5


@dataclass
class Cluster:
    gateways: list[str]
    replicas: list[Replica]

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
    tiny_models.save("llama", directory)
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(_replica(directory, f"replica-{number}", node))
            for number, node in enumerate(NODES)
        ]
        addresses: list[GatewayAddress] = []
        for number, node in enumerate(GATEWAY_NODES):
            url = await stack.enter_async_context(
                _gateway(f"gateway-{number}", node, replicas, addresses)
            )
            addresses.append(GatewayAddress(f"gateway-{number}", node, url))
        yield Cluster([address.url for address in addresses], replicas)


@asynccontextmanager
async def _replica(directory: Path, name: str, node: str) -> AsyncIterator[Replica]:
    backend = MetalBackend()
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
    name: str, node: str, replicas: Sequence[Replica], addresses: Sequence[GatewayAddress]
) -> AsyncIterator[str]:
    async def everybody() -> Sequence[GatewayAddress]:
        return addresses

    metrics = GatewayMetrics(replica=name, node=node)
    routing = RoutingSettings()
    with closing(replica_connections()) as connections:
        app = build_gateway_app(
            GatewayParts(
                settings=GatewaySettings(),
                keys=KeyRing([]),
                replicas=ReplicaTable(
                    ReplicaDirectory(replicas), load_half_life_s=routing.load_half_life_s
                ),
                router=build_router(routing),
                metrics=metrics,
                connections=connections,
                gateways=everybody,
            )
        )
        with host_metrics(metrics.registry, node):
            async with serving(app) as url:
                yield url


async def load(running: Cluster, *, seconds: float, at_once: int) -> None:
    """Streams of a few documents with different questions, some whole answers, some mistakes."""
    rng = random.Random(0)
    documents = [rng.randbytes(200).hex() for _ in range(6)]
    until = time.monotonic() + seconds

    async def client(number: int) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
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
def prometheus(directory: Path, targets_url: str) -> Iterator[str]:
    """The shipped configuration and rules, looked at more often. Yields its URL."""
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = {"scrape_interval": f"{int(SCRAPE_S * 1000)}ms", "evaluation_interval": "1s"}
    config["rule_files"] = [str(CONFIG.parent / name) for name in config["rule_files"]]
    config["alerting"] = {}
    [job] = [job for job in config["scrape_configs"] if job["job_name"] == "pomona"]
    config["scrape_configs"] = [job]
    job["http_sd_configs"][0]["url"] = targets_url
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
            with prometheus(directory, running.targets_url) as url:
                await load(running, seconds=seconds, at_once=12)
                end = time.time()
                for dashboard in DASHBOARDS:
                    answers = await asyncio.to_thread(
                        ask_all, dashboard, Prometheus(url, rate_interval="12s"), end
                    )
                    draw(dashboard, answers, images / f"{dashboard.uid.split('-')[1]}.png")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
