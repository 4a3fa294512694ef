"""The shipped load balancers' configurations, run on a host of their own."""

from __future__ import annotations

import csv
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from ops.bench.cluster.host import Host
from ops.bench.cluster.hosts import GATEWAY_PORT, Hosts
from ops.load_balancer.haproxy import haproxy
from ops.load_balancer.nginx import nginx
from ops.load_balancer.plan import ClientLimits, Plan

CONFIGURATIONS: Mapping[str, Callable[[Plan], str]] = {"haproxy": haproxy, "nginx": nginx}
COMMANDS = {
    "haproxy": ("haproxy", "-db", "-f"),
    "nginx": ("nginx", "-g", "daemon off;", "-c"),
}
PORT = 80
# The benchmark's clients share one address.
LIMITS = ClientLimits(requests_at_once=10_000, requests_per_second=10_000)


@dataclass(frozen=True)
class Server:
    """A gateway as HAProxy sees it."""

    is_up: bool
    times_down: int


@dataclass(frozen=True)
class Balancer:
    name: str
    host: Host
    directory: Path
    """Of what it writes itself."""

    @property
    def url(self) -> str:
        return f"http://{self.host.address}:{PORT}"

    def servers(self) -> dict[str, Server]:
        """What HAProxy's socket tells of each gateway."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.directory / "haproxy-admin.sock"))
            connection.sendall(b"show stat\n")
            with connection.makefile() as answer:
                rows = csv.DictReader(StringIO(answer.read().removeprefix("# ")))
        return {
            row["svname"]: Server(row["status"] == "UP", int(row["chkdown"]))
            for row in rows
            if row["pxname"] == "gateways" and row["svname"] != "BACKEND"
        }

    def tried_elsewhere(self) -> list[str]:
        """Requests that nginx took from one gateway to the next, by its access log."""
        lines = (self.directory / "pomona-access.log").read_text().splitlines()
        return [line for line in lines if re.search(r"gateway=\S+, \S+ statuses", line)]


def start_balancer(hosts: Hosts, name: str) -> Balancer:
    """Boots its host, too, which may have been another balancer's before."""
    host = hosts.balancer
    host.kill()
    host.boot()
    directory = host.folder / name
    directory.mkdir(exist_ok=True)
    plan = Plan(
        gateways=[f"{edge.address}:{GATEWAY_PORT}" for edge in hosts.edges],
        listen=[f"0.0.0.0:{PORT}"],
        status="127.0.0.1:8405",
        directory=directory,
        limits=LIMITS,
    )
    path = directory / "configuration"
    path.write_text(CONFIGURATIONS[name](plan))
    host.start(name, [*COMMANDS[name], str(path)])
    return Balancer(name, host, directory)
