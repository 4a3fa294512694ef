"""The generated scripts, run: a host with the head, the store and a gateway, and one with an
engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from openai import OpenAI

from ops.cluster.__main__ import generate
from ops.cluster.credentials import KINDS
from tests.support.cluster.supervised import DEADLINE_S, Supervised, wait_until
from tests.support.e2e.long_stream import KEY, NUM_CHOICES, long_stream
from tests.support.e2e.neighbours import open_to_another_user
from tests.support.e2e.serve_process import REPOSITORY, ServeProcess, free_ports, scrape_url

pytestmark = pytest.mark.cluster

HEAD, ENGINE = "127.0.0.2", "127.0.0.3"
PORTS = ("ray", "dashboard", "agent", "client", "metrics", "store", "head_agent", "head_metrics")


@dataclass(frozen=True)
class Hosts:
    """Where two hosts' generated files are, and the gateway's address."""

    home: Path
    head: Path
    engine: Path
    url: str

    def secrets(self) -> list[str]:
        made = self.home / "head-out" / "secrets"
        return [KEY, *((made / name).read_text() for name in ("auth_token", "store-client.key"))]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    for missing in ("redis-server", str(REPOSITORY / ".venv/bin/ray")):
        if shutil.which(missing) is None:
            pytest.skip(f"{missing} is not installed")
    # Under /tmp, for the lengths of Ray's sockets' paths.
    home = Path(tempfile.mkdtemp(prefix="pomona-", dir="/tmp"))
    home.chmod(0o755)
    made = ServeProcess("", home, home / "serve.log")
    try:
        yield generated(home)
    finally:
        made.kill()
        shutil.rmtree(home)


def generated(home: Path) -> Hosts:
    """Two host lists that agree on the cluster and differ in what one machine has only once."""
    http, engine_agent, engine_metrics, *ports = free_ports(3 + len(PORTS))
    (home / ".pomona").mkdir()
    (home / ".pomona" / "api_keys").write_text(f"{KEY}\n")
    config = yaml.safe_load((REPOSITORY / "configs" / "cluster.yaml").read_text())
    engines, gateways = config["applications"]
    engines["args"]["engine"] = {"model": "demo", "max_num_seqs": 1}
    gateways["args"]["gateway"] |= {"port": http, "host": HEAD}
    for application in config["applications"]:
        application["args"]["replica"] = {"drain_timeout_s": 100}
    (home / "cluster.yaml").write_text(yaml.safe_dump(config))
    host_list: dict[str, Any] = {
        "hosts": [
            {
                "name": "head",
                "address": HEAD,
                "system": "linux",
                "roles": ["head", "gateway", "store"],
                "num_cpus": 0,
            },
            {"name": "engine", "address": ENGINE, "system": "linux", "roles": ["engine"]},
        ],
        "config": "cluster.yaml",
        "api_keys": ".pomona/api_keys",
        "package": str(REPOSITORY),
        **{f"{name}_port": port for name, port in zip(PORTS, ports, strict=True)},
    }
    engine_ports = {"agent_port": engine_agent, "metrics_port": engine_metrics}
    for host, changes in (("head", {}), ("engine", engine_ports)):
        settings = host_list | changes | {"state": str(home / host)}
        (home / f"{host}.yaml").write_text(yaml.safe_dump(settings))
        out = home / f"{host}-out"
        if host == "engine":
            shutil.copytree(home / "head-out" / "secrets", out / "secrets")
        generate(home / f"{host}.yaml", out, make=KINDS if host == "head" else ())
    return Hosts(
        home, home / "head-out" / "head", home / "engine-out" / "engine", f"http://{HEAD}:{http}"
    )


def test_hosts_come_back_by_themselves(hosts: Hosts) -> None:
    # In whatever order they start.
    engine = Supervised.start(hosts.engine / "pomona-ray", hosts.home)
    head = Supervised.start(hosts.head / "pomona-head", hosts.home)
    gateway = Supervised.start(hosts.head / "pomona-ray", hosts.home)
    store = Supervised.start(hosts.head / "pomona-store", hosts.home)
    wait_until(lambda: answers(hosts), "an answer")
    assert_no_secret_can_be_seen(hosts)
    assert_private(hosts)

    # An engine's host that loses its raylet joins again, and its new engine serves.
    (first,) = engines(hosts)
    lost = engine.process("raylet")
    lost.kill()
    wait_until(lambda: engine.process("raylet").pid != lost.pid, "another raylet")
    # The lost one may outlive its raylet, and stay listed until Serve has found it lost.
    wait_until(lambda: is_replaced(hosts, first), "another engine instead of the first")
    wait_until(lambda: answers(hosts), "an answer after the engine's host was lost")

    # The head is lost and comes back; the engine has been there all the time.
    before = engine_url(hosts)
    lost = head.process("gcs_server")
    head.process("ray").kill()
    wait_until(lambda: head.process("gcs_server").pid != lost.pid, "another head")
    wait_until(lambda: answers(hosts), "an answer after the head was lost")
    assert engine_url(hosts) == before
    wait_until(lambda: statuses(hosts) == {"RUNNING"}, "applications that run")
    assert_private(hosts)

    # Told to stop, a host first ends its streams, and leaves nothing behind.
    with ThreadPoolExecutor() as threads:
        stream = threads.submit(long_stream, hosts.url, num_tokens=500)
        wait_until(lambda: is_running(hosts), "a running stream")
        engine.stop()
        assert stream.result(DEADLINE_S) == (NUM_CHOICES * 500, "data: [DONE]")
    for service in (gateway, head, store):
        service.stop()


def answers(hosts: Hosts) -> bool:
    try:
        if httpx.get(f"{hosts.url}/ready", timeout=5).status_code != 200:
            return False
    except httpx.TransportError:
        return False
    client = OpenAI(base_url=f"{hosts.url}/v1", api_key=KEY, max_retries=0)
    answer = client.completions.create(model="demo", prompt="Pomona is", max_tokens=4)
    return answer.choices[0].finish_reason == "length"


def statuses(hosts: Hosts) -> set[str]:
    """Of the applications, as an operator asks for them; none while the head is away."""
    status = subprocess.run(
        [hosts.head / "pomona", "serve", "status"],
        env={"HOME": str(hosts.home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    if status.returncode:
        return set()
    return {one["status"] for one in yaml.safe_load(status.stdout)["applications"].values()}


def is_running(hosts: Hosts) -> bool:
    """A request, on the engine."""
    lines = httpx.get(engine_url(hosts)).text.splitlines()
    (running,) = (line for line in lines if line.startswith("pomona_requests_running{"))
    return float(running.split()[-1]) > 0


def engines(hosts: Hosts) -> list[str]:
    """The replicas that are listed."""
    labels = [group["labels"] for group in httpx.get(f"{hosts.url}/targets").json()]
    return [one["replica"] for one in labels if one["component"] == "engine"]


def is_replaced(hosts: Hosts, lost: str) -> bool:
    return len(listed := engines(hosts)) == 1 and listed != [lost]


def engine_url(hosts: Hosts) -> str:
    return scrape_url(ServeProcess(hosts.url, hosts.home, hosts.home / "serve.log"), "engine")


def assert_private(hosts: Hosts) -> None:
    """What Ray writes and its token, to whoever else may enter the user's home."""
    states = [hosts.home / name for name in ("head", "engine")]
    assert [path.stat().st_mode & 0o777 for path in states] == [0o700, 0o700]
    written = [path for state in states for path in state.rglob("*")]
    assert any(path.is_socket() for path in written)
    tokens = [host / "auth_token" for host in (hosts.head, hosts.engine)]
    if os.geteuid() == 0:
        assert open_to_another_user([*written, *tokens]) == {}


def assert_no_secret_can_be_seen(hosts: Hosts) -> None:
    """On command lines, which every user of a host can read."""
    lines = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    assert sum(str(hosts.home) in line for line in lines) > 10
    for secret in hosts.secrets():
        assert not any(secret in line for line in lines)
