"""The shipped load balancers' configurations, run on a host of their own."""

from __future__ import annotations

import csv
import re
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from ops.load_balancer.haproxy import haproxy
from ops.load_balancer.nginx import nginx
from ops.load_balancer.plan import ClientLimits, Plan
from tests.support.cluster.host import Host
from tests.support.cluster.hosts import BALANCER_STATUS_PORT, GATEWAY_PORT, Hosts
from tests.support.cluster.status import is_ready, wait_until

CONFIGURATIONS: Mapping[str, Callable[[Plan], str]] = {"haproxy": haproxy, "nginx": nginx}
COMMANDS = {
    "haproxy": ("haproxy", "-db", "-f"),
    "nginx": ("nginx", "-g", "daemon off;", "-c"),
}
PORT = 80
# The benchmark's clients share one address.
LIMITS = ClientLimits(requests_at_once=10_000, requests_per_second=10_000)


@dataclass(frozen=True)
class Balancer:
    name: str
    host: Host
    directory: Path
    """Of what it writes itself."""

    @property
    def url(self) -> str:
        return f"http://{self.host.address}:{PORT}"

    def switches(self) -> Counter[str]:
        """How often it has turned away from each gateway: HAProxy when health checks failed, nginx
        when a request did."""
        return _times_down(self.directory) if self.name == "haproxy" else _passed_on(self.directory)


def _times_down(directory: Path) -> Counter[str]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(directory / "haproxy-admin.sock"))
        connection.sendall(b"show stat\n")
        with connection.makefile() as answer:
            rows = csv.DictReader(StringIO(answer.read().removeprefix("# ")))
    return Counter(
        {
            row["svname"]: int(row["chkdown"])
            for row in rows
            if row["pxname"] == "gateways" and row["svname"] != "BACKEND"
        }
    )


def _passed_on(directory: Path) -> Counter[str]:
    """By the access log, which names all gateways that a request was tried at."""
    log = (directory / "pomona-access.log").read_text()
    return Counter(re.findall(r" gateway=(\S+), \S", log))


def start_balancer(hosts: Hosts, name: str) -> Balancer:
    """On a freshly booted host. Returns once it serves."""
    host = hosts.balancer
    host.kill()
    host.boot()
    directory = host.folder / name
    directory.mkdir(exist_ok=True)
    plan = Plan(
        gateways=[f"{edge.address}:{GATEWAY_PORT}" for edge in hosts.edges],
        listen=[f"0.0.0.0:{PORT}"],
        status=f"{host.address}:{BALANCER_STATUS_PORT}",
        directory=directory,
        limits=LIMITS,
    )
    path = directory / "configuration"
    path.write_text(CONFIGURATIONS[name](plan))
    host.start(name, [*COMMANDS[name], str(path)])
    balancer = Balancer(name, host, directory)
    wait_until(lambda: is_ready(balancer.url), f"{name} serves")
    return balancer
