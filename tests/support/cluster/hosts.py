"""Which hosts there are, and what runs on each: the service files that ``ops.cluster`` writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ops.cluster.__main__ import generate
from ops.cluster.credentials import KINDS
from ops.cluster.files import write_private
from tests.support.cluster.host import STATE, Host
from tests.support.cluster.network import Network

PACKAGE = Path(__file__).resolve().parents[3]
GATEWAY_PORT = 8000
BALANCER_STATUS_PORT = 8405
SERVICES = ("pomona-store", "pomona-head", "pomona-ray")
API_KEY = "a-key-of-the-benchmark"
VARIABLES = {
    # All engines share this machine's cores.
    "POMONA_CPU_THREADS": "1",
}


@dataclass(frozen=True)
class Hosts:
    folder: Path
    store: Host
    head: Host
    edges: tuple[Host, ...]
    """Where gateways are."""
    workers: tuple[Host, ...]
    """Where engines are."""
    spares: tuple[Host, ...]
    """For one more engine; off."""
    balancer: Host

    @property
    def roles(self) -> dict[Host, list[str]]:
        found: dict[Host, list[str]] = {self.store: ["store"]}
        found.setdefault(self.head, []).append("head")
        for host in self.edges:
            found.setdefault(host, []).append("gateway")
        for host in (*self.workers, *self.spares):
            found.setdefault(host, []).append("engine")
        return found

    def script(self, host: Host, name: str) -> str:
        return str(self.folder / "services" / host.name / name)

    def write_services(self, config: dict[str, Any]) -> None:
        """Of all hosts, with ``config`` for the head to deploy."""
        config_path = self.folder / "cluster.yaml"
        config_path.write_text(yaml.safe_dump(config))
        keys_path = self.folder / "api_keys"
        write_private(keys_path, f"{API_KEY}\n")
        host_list = {
            "config": str(config_path),
            "api_keys": str(keys_path),
            "user": "root",
            "package": str(PACKAGE),
            "state": STATE,
            "environment": VARIABLES,
            "balancers": [f"{self.balancer.address}:{BALANCER_STATUS_PORT}"],
            "hosts": [
                {
                    "name": host.name,
                    "address": host.address,
                    "system": "linux",
                    "roles": roles,
                    "num_cpus": int("engine" in roles),
                }
                for host, roles in self.roles.items()
            ],
        }
        path = self.folder / "hosts.yaml"
        path.write_text(yaml.safe_dump(host_list))
        out = self.folder / "services"
        generate(path, out, make=() if out.exists() else KINDS)

    def rotate_store_certificates(self) -> None:
        """As an operator does; services read them when they start."""
        generate(self.folder / "hosts.yaml", self.folder / "services", make=("store",))

    def start(self, host: Host) -> None:
        """Boot ``host``, and run its services, whether or not those that it needs are there yet."""
        host.boot()
        self.start_services(host)

    def start_services(self, host: Host) -> None:
        for service in SERVICES:
            if Path(script := self.script(host, service)).exists():
                host.start(service, [script])


@contextmanager
def hosts(
    network: Network, folder: Path, *, num_workers: int, doubled: bool = False
) -> Iterator[Hosts]:
    """They have their disks, and are off; at the end they are off again. ``doubled``: every host
    has an engine and a gateway, one is also the head and one the store."""
    workers = tuple(Host(network, folder, f"worker{n}", 20 + n) for n in range(1, num_workers + 1))
    made = Hosts(
        folder,
        store=workers[1] if doubled else Host(network, folder, "store", 2),
        head=workers[0] if doubled else Host(network, folder, "head", 3),
        edges=workers
        if doubled
        else tuple(Host(network, folder, f"edge{n}", 10 + n) for n in (1, 2)),
        workers=workers,
        spares=() if doubled else (Host(network, folder, "spare", 30),),
        balancer=Host(network, folder, "balancer", 4),
    )
    for host in {made.head, *made.edges}:
        keys = host.home / ".pomona" / "api_keys"
        keys.parent.mkdir()
        write_private(keys, f"{API_KEY}\n")
    with ExitStack() as stack:
        if not doubled:
            workers[0].mount_small_disk()
            stack.callback(workers[0].unmount_small_disk)
        for host in (*made.roles, made.balancer):
            stack.callback(host.kill)
        yield made
