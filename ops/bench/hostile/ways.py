"""The ways in: what a client may talk to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from ops.bench.hostile.application import HOST, Application, free_ports, wait_until_ready
from ops.bench.overload.servers import resident_bytes
from ops.load_balancer.foreground import start
from ops.load_balancer.plan import Plan

BALANCERS = ("haproxy", "nginx")
NAMES = ("own port", *BALANCERS)


@dataclass(frozen=True)
class Way:
    """``processes``: those that do the work behind it, by name."""

    name: str
    url: str
    engine_url: str
    processes: Callable[[], dict[str, psutil.Process]]

    def resident_bytes(self) -> dict[str, int]:
        return {name: resident_bytes(one) for name, one in self.processes().items()}


@contextmanager
def way_in(name: str, running: Application) -> Iterator[Way]:
    if name in BALANCERS:
        with _balanced(name, running) as url:
            yield Way(name, url, running.engine_url, running.processes)
    else:
        yield Way(name, running.gateway_url, running.engine_url, running.processes)


def is_installed(name: str) -> bool:
    return name not in BALANCERS or shutil.which(name) is not None


@contextmanager
def _balanced(kind: str, running: Application) -> Iterator[str]:
    listen, status = (f"{HOST}:{port}" for port in free_ports(2))
    folder = running.folder / kind
    folder.mkdir()
    gateway = running.gateway_url.removeprefix("http://")
    process = start(kind, Plan([gateway], [listen], status, folder), folder / "log")
    try:
        wait_until_ready(f"http://{listen}", process, folder / "log")
        yield f"http://{listen}"
    finally:
        process.terminate()
        process.wait()
