"""The whole cluster, up and serving."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.cluster.deployment import configuration
from tests.support.cluster.hosts import Hosts, hosts
from tests.support.cluster.network import Network
from tests.support.cluster.status import (
    Target,
    gateway_url,
    is_ready,
    requests_on,
    targets,
    wait_until,
)

START_S = 900.0
"""Longest start of a cluster, whose hosts start at the same time."""


@dataclass
class Cluster:
    hosts: Hosts
    folder: Path
    model: str = "demo"
    num_deployments: int = 0

    def gateway_of(self, number: int) -> str:
        """Where a client goes when nothing is in front of the gateways: to every second one."""
        edges = self.hosts.edges
        return gateway_url(edges[number % len(edges)])

    @property
    def num_engines(self) -> int:
        """When all is well."""
        return len(self.hosts.workers)

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

    def deploy(self, **engine: Any) -> None:
        """``model``, with something else that is new to engines and to gateways each time, and with
        ``engine`` this time."""
        self.num_deployments += 1
        self.hosts.write_services(
            configuration(
                engine={
                    "model": self.model,
                    "max_queued_requests": 500 + self.num_deployments,
                    **engine,
                },
                gateway={"max_attempts": 3 + self.num_deployments},
            )
        )
        deployed = self._on_head(self.hosts.script(self.hosts.head, "pomona-deploy"))
        if deployed.returncode:
            raise RuntimeError(f"it was not deployed:\n{deployed.stdout}")

    def is_serving(self, num_engines: int) -> bool:
        ready = all(is_ready(gateway_url(edge)) for edge in self.hosts.edges)
        return ready and len(self.engines) == num_engines

    def can_be_deployed_to(self) -> bool:
        return self._on_head("serve", "status").returncode == 0

    def has_settled(self, application: str, deployment: str, num_replicas: int) -> bool:
        """Serve has what it wants: nothing starts, stops, or waits for a host."""
        told = self._on_head("serve", "status")
        if told.returncode:
            raise RuntimeError(f"Serve does not say how it is:\n{told.stdout}")
        found = yaml.safe_load(told.stdout)["applications"][application]["deployments"][deployment]
        state = (found["status"], found["replica_states"])
        return state == ("HEALTHY", {"RUNNING": num_replicas})

    def engines_have_settled(self, num_engines: int) -> bool:
        return self.has_settled("engines", "EngineReplica", num_engines)

    def is_whole(self) -> bool:
        return (
            self.is_serving(self.num_engines)
            and self.can_be_deployed_to()
            and self.engines_have_settled(self.num_engines)
        )

    def messages(self) -> list[str]:
        """What Serve says of each deployment; nothing if it is away."""
        told = self._on_head("serve", "status")
        if told.returncode:
            return []
        applications = yaml.safe_load(told.stdout)["applications"].values()
        return [one["message"] for app in applications for one in app["deployments"].values()]

    def _on_head(self, *command: str) -> subprocess.CompletedProcess[str]:
        head = self.hosts.head
        return head.run(self.hosts.script(head, "pomona"), *command)


@contextmanager
def cluster(folder: Path, *, num_workers: int, doubled: bool = False) -> Iterator[Cluster]:
    """Started in the wrong order: whoever needs another one is there before it is. With double
    roles one after the other, which leaves two cores enough for Ray's agents to start in time."""
    with (
        Network() as network,
        hosts(network, folder, num_workers=num_workers, doubled=doubled) as all_hosts,
    ):
        running = Cluster(all_hosts, folder)
        all_hosts.write_services(configuration())
        late = (all_hosts.head, all_hosts.store)
        others = {*all_hosts.workers, *all_hosts.edges}.difference(late)
        if doubled:
            for number, host in enumerate((all_hosts.store, all_hosts.head, *others)):
                all_hosts.start(host)
                if number:
                    wait_until(lambda edge=host: is_ready(gateway_url(edge)), "it serves", START_S)
        else:
            for host in (*others, *late):
                all_hosts.start(host)
        wait_until(lambda: running.is_serving(num_workers), "gateways and engines serve", START_S)
        yield running
