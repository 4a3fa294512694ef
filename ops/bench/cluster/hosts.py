"""Which hosts there are, and what runs on each: a store, a head, two edges, engines, a balancer."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deployments.environment import variables
from ops.bench.cluster.host import Host
from ops.bench.cluster.network import Network

RAY_PORT = 6380
DASHBOARD_PORT = 8265
GATEWAY_PORT = 8000
API_KEY = "a-key-of-the-benchmark"


@dataclass(frozen=True)
class Hosts:
    store: Host
    head: Host
    edges: tuple[Host, ...]
    workers: tuple[Host, ...]
    balancer: Host

    @property
    def all(self) -> tuple[Host, ...]:
        return (self.store, self.head, *self.edges, *self.workers, self.balancer)


@contextmanager
def hosts(network: Network, folder: Path, *, num_workers: int) -> Iterator[Hosts]:
    """They have their disks, and are off; at the end they are off again."""
    token = secrets.token_hex(32)
    made = Hosts(
        store=Host(network, folder, "store", 2),
        head=Host(network, folder, "head", 3),
        edges=tuple(Host(network, folder, f"edge{n}", 10 + n) for n in (1, 2)),
        workers=tuple(
            Host(network, folder, f"worker{n}", 20 + n) for n in range(1, num_workers + 1)
        ),
        balancer=Host(network, folder, "balancer", 4),
    )
    for host in made.all:
        for path, secret in ((".ray/auth_token", token), (".pomona/api_keys", API_KEY)):
            file = host.home / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(secret + "\n")
            file.chmod(0o600)
    with ExitStack() as stack:
        for host in made.all:
            stack.callback(host.kill)
        yield made


def start_store(hosts: Hosts) -> None:
    hosts.store.boot()
    hosts.store.start(
        "redis", ["redis-server", "--bind", hosts.store.address, "--protected-mode", "no"]
    )


def start_ray(hosts: Hosts, host: Host) -> None:
    """Boot ``host`` and run Ray on it, whether or not the head answers yet."""
    host.boot()
    is_head = host is hosts.head
    resources = {"gateway": 1} if host in hosts.edges else {} if is_head else {"mlx": 1}
    arguments = [
        *("--block", "--disable-usage-stats", "--include-log-monitor=false"),
        f"--node-ip-address={host.address}",
        f"--num-cpus={0 if host in hosts.edges else 1}",
        f"--resources={json.dumps(resources)}",
        *("--object-store-memory=80000000", "--metrics-export-port=8090"),
    ]
    if is_head:
        arguments += ["--head", f"--port={RAY_PORT}", f"--dashboard-host={host.address}"]
    else:
        arguments += [f"--address={hosts.head.address}:{RAY_PORT}"]
    ray = str(Path(sys.executable).with_name("ray"))
    host.start("ray", [ray, "start", *arguments], environment(hosts, host))


def environment(hosts: Hosts, host: Host) -> dict[str, str]:
    common = variables("Linux") | {
        # Three engines share this machine's cores.
        "POMONA_CPU_THREADS": "1",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
        "RAY_DASHBOARD_ADDRESS": f"http://{hosts.head.address}:{DASHBOARD_PORT}",
    }
    if host is not hosts.head:
        return common
    return common | {
        "RAY_REDIS_ADDRESS": f"{hosts.store.address}:6379",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "5000",
        "RAY_health_check_failure_threshold": "3",
    }
