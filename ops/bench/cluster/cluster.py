"""The whole cluster, up and serving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench.cluster.deployment import configuration, deploy
from ops.bench.cluster.hosts import DASHBOARD_PORT, Hosts, hosts, start_ray, start_store
from ops.bench.cluster.network import Network
from ops.bench.cluster.status import (
    Target,
    gateway_url,
    is_ready,
    listens,
    requests_on,
    targets,
    wait_until,
)


@dataclass
class Cluster:
    hosts: Hosts

    def gateway_of(self, number: int) -> str:
        """Where a client goes when nothing is in front of the gateways: to every second one."""
        edges = self.hosts.edges
        return gateway_url(edges[number % len(edges)])

    @property
    def targets(self) -> list[Target]:
        """Those that every gateway knows."""
        first, *others = (targets(gateway_url(edge)) for edge in self.hosts.edges)
        return [target for target in first if all(target in known for known in others)]

    @property
    def engines(self) -> list[Target]:
        return [target for target in self.targets if target.component == "engine"]

    def requests_on(self, address: str) -> int:
        """Running and waiting on the engine of a host."""
        return sum(requests_on(engine) for engine in self.engines if engine.node == address)

    def deploy(self, config: dict[str, Any]) -> None:
        deploy(self.hosts, config)

    def is_serving(self, num_engines: int) -> bool:
        ready = all(is_ready(gateway_url(edge)) for edge in self.hosts.edges)
        return ready and len(self.engines) == num_engines

    def can_be_deployed_to(self) -> bool:
        return listens(f"http://{self.hosts.head.address}:{DASHBOARD_PORT}/api/version")


@contextmanager
def cluster(folder: Path, *, num_workers: int) -> Iterator[Cluster]:
    """Started in the wrong order: whoever joins the head is there before it is."""
    with Network() as network, hosts(network, folder, num_workers=num_workers) as all_hosts:
        running = Cluster(all_hosts)
        start_store(all_hosts)
        for host in (*all_hosts.workers, *all_hosts.edges):
            start_ray(all_hosts, host)
        start_ray(all_hosts, all_hosts.head)
        wait_until(running.can_be_deployed_to, "the head's dashboard answers")
        running.deploy(configuration())
        wait_until(lambda: running.is_serving(num_workers), "gateways and engines serve")
        yield running
