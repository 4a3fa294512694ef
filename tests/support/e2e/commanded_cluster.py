"""A cluster that the runbook's commands start by hand: own ports, own home, gone with the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.documents import block
from tests.support.e2e import leaks
from tests.support.e2e.serve_process import (
    RAY_FOLDER,
    READY_TIMEOUT_S,
    REPOSITORY,
    ServeProcess,
    free_ports,
    ray_start,
    scrape_url,
)

PORTS = ("ray", "client", "agent", "other_agent", "dashboard", "http", "metrics")


@dataclass(frozen=True)
class CommandedCluster:
    """``engines`` and ``gateways`` are the two applications' arguments, for the next ``deploy``.
    What tests add to ``serve.secrets`` must be in no log, metric or command line at the end."""

    serve: ServeProcess
    environment: dict[str, str]
    ports: dict[str, int]
    config: dict[str, Any]

    @property
    def url(self) -> str:
        return self.serve.url

    @property
    def engines(self) -> dict[str, Any]:
        arguments: dict[str, Any] = self.config["applications"][0]["args"]
        return arguments

    @property
    def gateways(self) -> dict[str, Any]:
        arguments: dict[str, Any] = self.config["applications"][1]["args"]
        return arguments

    def start_head(self) -> None:
        ports = self.ports
        own_ports = (
            f"--port={ports['ray']} --ray-client-server-port={ports['client']} "
            f"--dashboard-port={ports['dashboard']} "
            f"--dashboard-agent-listen-port={ports['agent']}"
        )
        # A host that joins has no gateway: it is this machine, too, where the port is taken.
        head = block("head").replace("--port=6379", own_ports)
        self._shell(head.replace('"mlx": 1', '"mlx": 1, "gateway": 1'))

    def join(self) -> None:
        """A second host, as far as Ray is concerned."""
        address = (
            f"--address=127.0.0.1:{self.ports['ray']} "
            f"--dashboard-agent-listen-port={self.ports['other_agent']}"
        )
        with ray_start():
            self._shell(block("worker").replace("--address=HEAD_ADDRESS:6379", address))

    def deploy(self) -> None:
        path = self.serve.home / "cluster.yaml"
        path.write_text(yaml.safe_dump(self.config))
        self._shell(block("deploy-by-hand").replace("configs/cluster.yaml", str(path)))

    def replicas(self, component: str) -> set[str]:
        groups = httpx.get(f"{self.url}/targets", timeout=READY_TIMEOUT_S).json()
        labels = [group["labels"] for group in groups]
        return {one["replica"] for one in labels if one["component"] == component}

    def is_running_a_request(self) -> bool:
        metrics = httpx.get(
            scrape_url(self.serve, "engine"), timeout=READY_TIMEOUT_S
        ).text.splitlines()
        return any(
            line.startswith("pomona_requests_running") and " 1.0" in line for line in metrics
        )

    def look(self) -> str:
        """What Ray and Serve say of themselves in another shell."""
        return self._shell(block("look-by-hand"))

    def _shell(self, command: str) -> str:
        run = subprocess.run(
            ["bash", "-euc", 'eval "$(python -m deployments.environment head)"\n' + command],
            cwd=REPOSITORY,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=READY_TIMEOUT_S,
            # The cluster is known by its sessions when it is stopped: they must not be ours.
            start_new_session=True,
        )
        assert run.returncode == 0, run.stdout.decode()
        return run.stdout.decode()


@contextmanager
def commanded_cluster(api_key: str) -> Iterator[CommandedCluster]:
    """A head with the engine and the gateway of `configs/cluster.yaml`, ready."""
    home = Path(tempfile.mkdtemp(prefix="pomona-", dir="/tmp"))
    (home / ".pomona").mkdir()
    (home / ".pomona" / "api_keys").write_text(f"{api_key}\n")
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    url = f"http://127.0.0.1:{ports['http']}"
    cluster = CommandedCluster(
        ServeProcess(url, home, home / "serve.log"),
        _environment(home, ports["dashboard"]),
        ports,
        yaml.safe_load((REPOSITORY / "configs" / "cluster.yaml").read_text()),
    )
    cluster.gateways["gateway"] |= {
        "host": "127.0.0.1",
        "port": ports["http"],
        "metrics_port": ports["metrics"],
    }
    # One sequence at a time, so that a stream of several is under way for some seconds.
    cluster.engines["engine"] = {"model": "demo", "max_num_seqs": 1}
    try:
        with ray_start():
            cluster.start_head()
            cluster.deploy()
            wait_for(lambda: is_ready(cluster.url))
        yield cluster
        assert len(leaks.made_secrets(home)) >= 2
        assert cluster.serve.leaks() == []
        assert leaks.leaks(cluster.serve.all_secrets(), leaks.files(home)) == []
    finally:
        cluster.serve.kill()
        shutil.rmtree(home)


def _environment(home: Path, dashboard_port: int) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return inherited | {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_TMPDIR": str(home / RAY_FOLDER),
        "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{dashboard_port}",
        # A machine that runs tests may be too busy to answer in two seconds.
        "RAY_health_check_timeout_ms": "20000",
        "PYTHONPATH": leaks.recorder(home),
    }


def is_ready(url: str) -> bool:
    """Not where nothing listens, either."""
    try:
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
