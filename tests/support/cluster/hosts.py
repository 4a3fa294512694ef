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
    spare: Host
    """For one more engine."""
    balancer: Host

    @property
    def of_cluster(self) -> tuple[Host, ...]:
        return (self.store, self.head, *self.edges, *self.workers, self.spare)

    def script(self, host: Host, name: str) -> str:
        return str(self.folder / "services" / host.name / name)

    def write_services(self, config: dict[str, Any]) -> None:
        """Of all hosts, with ``config`` for the head to deploy."""
        config_path = self.folder / "cluster.yaml"
        config_path.write_text(yaml.safe_dump(config))
        keys_path = self.folder / "api_keys"
        write_private(keys_path, f"{API_KEY}\n")
        roles = {self.store: "store", self.head: "head"}
        roles |= dict.fromkeys(self.edges, "gateway") | dict.fromkeys(
            (*self.workers, self.spare), "engine"
        )
        host_list = {
            "config": str(config_path),
            "api_keys": str(keys_path),
            "user": "root",
            "package": str(PACKAGE),
            "state": STATE,
            "environment": VARIABLES,
            "hosts": [
                {
                    "name": host.name,
                    "address": host.address,
                    "system": "linux",
                    "roles": [role],
                    "num_cpus": int(role == "engine"),
                }
                for host, role in roles.items()
            ],
        }
        path = self.folder / "hosts.yaml"
        path.write_text(yaml.safe_dump(host_list))
        out = self.folder / "services"
        generate(path, out, make=() if out.exists() else KINDS)

    def start(self, host: Host) -> None:
        """Boot ``host``, and run its service, whether or not those that it needs are there yet."""
        service = "pomona-store" if host is self.store else "pomona-ray"
        host.boot()
        host.start(service, [self.script(host, service)])


@contextmanager
def hosts(network: Network, folder: Path, *, num_workers: int) -> Iterator[Hosts]:
    """They have their disks, and are off; at the end they are off again."""
    made = Hosts(
        folder,
        store=Host(network, folder, "store", 2),
        head=Host(network, folder, "head", 3),
        edges=tuple(Host(network, folder, f"edge{n}", 10 + n) for n in (1, 2)),
        workers=tuple(
            Host(network, folder, f"worker{n}", 20 + n) for n in range(1, num_workers + 1)
        ),
        spare=Host(network, folder, "spare", 30),
        balancer=Host(network, folder, "balancer", 4),
    )
    for host in (made.head, *made.edges):
        keys = host.home / ".pomona" / "api_keys"
        keys.parent.mkdir()
        write_private(keys, f"{API_KEY}\n")
    with ExitStack() as stack:
        made.workers[0].mount_small_disk()
        stack.callback(made.workers[0].unmount_small_disk)
        for host in (*made.of_cluster, made.balancer):
            stack.callback(host.kill)
        yield made
