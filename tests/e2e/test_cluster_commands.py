"""The README's way to a cluster, on a cluster of one host."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import leaks
import openai
import pytest
import yaml
from long_stream import KEY, NUM_CHOICES, NUM_TOKENS, long_stream
from openai import OpenAI
from serve_process import (
    READY_TIMEOUT_S,
    REPOSITORY,
    ServeProcess,
    free_ports,
    ray_start,
    scrape_url,
)
from test_readme import block

WRONG = "a-key-that-is-none"


@pytest.fixture
def home() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="pomona-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


def test_start_a_head_and_deploy_with_an_api_key(home: Path) -> None:
    ray, client, agent, other_agent, dashboard, http = free_ports(6)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = inherited | {
        "HOME": str(home),
        "PATH": path,
        "RAY_TMPDIR": str(home),
        "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{dashboard}",
        # A machine that runs tests may be too busy to answer in two seconds.
        "RAY_health_check_timeout_ms": "20000",
        "PYTHONPATH": leaks.recorder(home),
    }

    def shell(command: str) -> None:
        run = subprocess.run(
            ["bash", "-euc", 'eval "$(python -m deployments.environment)"\n' + command],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=READY_TIMEOUT_S,
            # The cluster is known by its sessions when it is stopped: they must not be ours.
            start_new_session=True,
        )
        assert run.returncode == 0, run.stdout.decode()

    config = yaml.safe_load((REPOSITORY / "configs" / "cluster.yaml").read_text())
    engines, gateways = (one["args"] for one in config["applications"])
    gateways["gateway"] |= {"host": "127.0.0.1", "port": http}
    # One sequence at a time, so that a stream of several lasts longer than a deployment.
    engines["engine"] = {"model": "demo", "max_num_seqs": 1}

    def deploy() -> None:
        (home / "cluster.yaml").write_text(yaml.safe_dump(config))
        shell(block("deploy").replace("configs/cluster.yaml", str(home / "cluster.yaml")))

    (home / ".pomona").mkdir()
    (home / ".pomona" / "api_keys").write_text(f"{KEY}\n")
    cluster = ServeProcess(f"http://127.0.0.1:{http}", home, home / "serve.log")
    try:
        own_ports = (
            f"--port={ray} --ray-client-server-port={client} --dashboard-port={dashboard} "
            f"--dashboard-agent-listen-port={agent}"
        )
        # A host that joins has no gateway: it is this machine, too, where the port is taken.
        head = block("head").replace("--port=6379", own_ports)
        with ray_start():
            shell(head.replace('"mlx": 1', '"mlx": 1, "gateway": 1'))
            deploy()
            wait_for(lambda: is_ready(cluster.url))
        answer = OpenAI(base_url=f"{cluster.url}/v1", api_key=KEY).chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "What is Pomona?"}], temperature=0
        )
        assert "Macs" in str(answer.choices[0].message.content)

        # A gateway's successor takes its port; the engine, and what was asked before, go on.
        engine, gateway = (replicas_of(cluster, name) for name in ("engine", "gateway"))
        with ThreadPoolExecutor() as threads:
            stream = threads.submit(long_stream, cluster.url)
            wait_for(lambda: is_running(cluster))
            gateways["gateway"]["max_attempts"] = 4
            deploy()
            wait_for(lambda: not replicas_of(cluster, "gateway") <= gateway)
            assert not stream.done()
            assert replicas_of(cluster, "engine") == engine
            assert stream.result(READY_TIMEOUT_S) == (NUM_CHOICES * NUM_TOKENS, "data: [DONE]")

        # An engine ends what it was asked before; the gateway stays.
        gateway = replicas_of(cluster, "gateway")
        old = scrape_url(cluster, "engine").removesuffix("/metrics")
        with ThreadPoolExecutor() as threads:
            stream = threads.submit(long_stream, cluster.url)
            wait_for(lambda: is_running(cluster))
            engines["engine"]["max_queued_requests"] = 100
            deploy()
            wait_for(lambda: httpx.get(f"{old}/ready").status_code != 200)
            assert not stream.done()
            assert stream.result(READY_TIMEOUT_S) == (NUM_CHOICES * NUM_TOKENS, "data: [DONE]")
        wait_for(lambda: is_ready(cluster.url))
        assert replicas_of(cluster, "gateway") == gateway
        assert not replicas_of(cluster, "engine") & engine
        # A second host, as far as Ray is concerned.
        address = f"--address=127.0.0.1:{ray} --dashboard-agent-listen-port={other_agent}"
        with ray_start():
            shell(block("worker").replace("--address=HEAD_ADDRESS:6379", address))
        # It gets an engine without another deployment.
        wait_for(lambda: len(replicas_of(cluster, "engine")) == 2)
        with pytest.raises(openai.AuthenticationError):
            OpenAI(base_url=f"{cluster.url}/v1", api_key=WRONG, max_retries=0).models.list()
        assert len(leaks.made_secrets(home)) >= 2
        cluster.secrets.add(WRONG)
        assert cluster.leaks() == []
        assert leaks.leaks(cluster.all_secrets(), leaks.files(home)) == []
    finally:
        while left := cluster.ray_processes():
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


def replicas_of(cluster: ServeProcess, component: str) -> set[str]:
    groups = httpx.get(f"{cluster.url}/targets").json()
    return {one["labels"]["replica"] for one in groups if one["labels"]["component"] == component}


def is_running(cluster: ServeProcess) -> bool:
    return " 1.0" in "".join(
        line
        for line in httpx.get(scrape_url(cluster, "engine")).text.splitlines()
        if line.startswith("pomona_requests_running")
    )


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
