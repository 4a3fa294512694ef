"""What another user and another host get of `make serve`: what was asked to be open.

Its gateway has a port for everybody with a key; all the rest is for this user, and on loopback.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.guarded.conftest import ALICE
from tests.support.documents import block
from tests.support.e2e import leaks
from tests.support.e2e.neighbours import (
    OtherHost,
    as_another_user,
    listening_ports,
    open_to_another_user,
    why_not,
)
from tests.support.e2e.serve_process import (
    RAY_FOLDER,
    ServeProcess,
    serve_process,
)

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

BEARER = {"Authorization": f"Bearer {ALICE}"}
BODY = {"model": "echo", "prompt": "one two three", "max_tokens": 2}
DEADLINE_S = 600

SYNC = """import json, sys
import grpc, grpc._channel

for port in json.load(sys.stdin):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            list(channel.stream_stream("/ray.rpc.syncer.RaySyncer/StartSync")(iter(()), timeout=5))
        except grpc.RpcError:
            pass
"""
"""What ends Ray, without a token."""
SUBMIT = """import encodings.idna, json, sys, urllib.error, urllib.request

url, headers = json.load(sys.stdin)
job = json.dumps({"entrypoint": "id"}).encode()
try:
    urllib.request.urlopen(urllib.request.Request(f"{url}/api/jobs/", job, headers), timeout=30)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def port_of(serve: ServeProcess) -> int:
    return int(serve.url.rpartition(":")[2])


def assert_private(serve: ServeProcess) -> None:
    """Both by the modes of what holds it, and as another user finds it."""
    folder, ray = serve.home / RAY_FOLDER, serve.home / ".ray"
    modes = [path.stat().st_mode & 0o777 for path in (folder, ray, ray / "auth_token")]
    assert modes == [0o700, 0o700, 0o600]
    written = [path for top in (folder, ray) for path in (top, *top.rglob("*"))]
    assert any(path.is_socket() for path in written)
    assert open_to_another_user(written) == {}


def answers(url: str, headers: Mapping[str, str] = BEARER) -> int:
    """The status that a client gets, or 0."""
    try:
        answer = httpx.post(f"{url}/v1/completions", json=BODY, headers=headers, timeout=10)
    except httpx.TransportError:
        return 0
    return answer.status_code


def test_what_is_open_to_another_user_would_be_found() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name, socket.socket(socket.AF_UNIX) as server:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "log").write_text("words")
        (folder / "log").chmod(0o604)
        (folder / "closed").mkdir(mode=0o700)
        server.bind(str(folder / "socket"))
        server.listen()
        (folder / "socket").chmod(0o722)
        found = open_to_another_user(folder.iterdir())
    assert found == {str(folder / "log"): "r", str(folder / "socket"): "w connect"}


def test_another_user_gets_at_nothing_that_it_writes(guarded: ServeProcess) -> None:
    assert_private(guarded)


def test_another_user_runs_nothing(guarded: ServeProcess) -> None:
    dashboard = leaks.dashboard_url(guarded.home)
    for headers in ({}, {"Authorization": f"Bearer {64 * '0'}"}):
        submitted = as_another_user(SUBMIT, [dashboard, headers])
        assert submitted.stdout in ("401\n", "403\n"), submitted


def test_another_host_reaches_what_it_was_offered(
    neighbour: OtherHost, guarded: ServeProcess
) -> None:
    ports = listening_ports()
    assert len(ports) > 10
    assert neighbour.reaches(ports) == {port_of(guarded)}
    url = f"http://{neighbour.address}:{port_of(guarded)}/v1/completions"
    ask = f"import httpx; print(httpx.post({url!r}, json={BODY!r}, headers=HEADERS).status_code)"
    for headers, status in ((BEARER, "200"), ({}, "401")):
        script = ask.replace("HEADERS", repr(headers))
        assert neighbour.run(sys.executable, "-c", script).stdout.strip() == status


def test_its_state_can_be_asked_for_in_another_terminal(guarded: ServeProcess) -> None:
    wait_for(lambda: "State: " in guarded.log.read_text())
    [command] = re.findall(r"State: (.*)", guarded.log.read_text())
    home = {"HOME": str(guarded.home), "PATH": "/usr/bin:/bin"}
    state = subprocess.run(["bash", "-c", command], env=home, capture_output=True, text=True)
    assert "status: RUNNING" in state.stdout, state.stderr


def call_as_another_user(serve: ServeProcess) -> None:
    called = as_another_user(SYNC, sorted(listening_ports()))
    assert called.returncode == 0, called.stderr


def kill_raylet(serve: ServeProcess) -> None:
    """Without it Serve's own process would wait for ever."""
    [raylet] = [pid for pid, line in serve.ray_processes().items() if "/raylet/raylet " in line]
    os.kill(raylet, signal.SIGKILL)


@pytest.mark.parametrize(
    "end_ray", [pytest.param(call_as_another_user, marks=pytest.mark.exhaustive), kill_raylet]
)
def test_it_serves_again_when_ray_has_been_ended(
    guarded: ServeProcess, end_ray: Callable[[ServeProcess], None]
) -> None:
    def is_ready() -> bool:
        log = guarded.log.read_text()
        return log.rfind("Ready. ") > log.rfind("Ray has died: its ")

    wait_for(is_ready)
    assert answers(guarded.url) == 200
    before = set(guarded.ray_processes())
    end_ray(guarded)
    wait_for(lambda: not is_ready())
    wait_for(is_ready)
    assert answers(guarded.url) == 200
    old = [line for pid, line in guarded.ray_processes().items() if pid in before]
    assert any("deployments.command" in line for line in old)
    assert not [line for line in old if "ray" in line.lower()]
    assert_private(guarded)


@pytest.mark.exhaustive
def test_serve_run_by_hand_is_as_private(
    neighbour: OtherHost, guarded_config: dict[str, Any], fake_plugin: dict[str, str]
) -> None:
    recipe = block("by-hand").replace("serve run configs/qwen3.yaml", 'exec serve run "$0"')
    others = listening_ports()
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    with serve_process(
        guarded_config, command=("bash", "-euc", recipe), environment={**fake_plugin, **path}
    ) as running:
        assert_private(running)
        # Beside what the other server has.
        assert neighbour.reaches(listening_ports() - others) == {port_of(running)}
