"""Who else there is: another user of the machine, and another host on its network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cluster.network import CLIENT_ADDRESS, Network

NOBODY = 65_534
HOST = "neighbour"

ENTER = """import json, os, socket, sys

def connects(path):
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
    return True

def rights(path):
    found = ["r"] if os.access(path, os.R_OK) else []
    found += ["w"] if os.access(path, os.W_OK) else []
    return " ".join(found + (["connect"] if connects(path) else []))

json.dump({path: had for path in json.load(sys.stdin) if (had := rights(path))}, sys.stdout)
"""
KNOCK = """
import json, socket, sys

def answers(host, port):
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True

json.dump([one for one in json.load(sys.stdin) if answers(*one)], sys.stdout)
"""


def why_not() -> str | None:
    """A sentence if this machine can have no neighbours."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "Only root on Linux can act as another user and as another host."
    missing = [tool for tool in ("ip", "unshare", "nsenter", "ss") if shutil.which(tool) is None]
    return f"Not installed: {', '.join(missing)}." if missing else None


def as_another_user(script: str, given: Any) -> subprocess.CompletedProcess[str]:
    """Runs Python, whose first lines import all that it needs: the interpreter itself may lie
    where only this user may go. ``given`` is its standard input, as JSON."""
    imports, _, rest = script.partition("\n\n")
    become = f"import os\nos.setgroups([])\nos.setgid({NOBODY})\nos.setuid({NOBODY})\n"
    return subprocess.run(
        [sys.executable, "-c", f"{imports}\n{become}{rest}"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )


def open_to_another_user(paths: Iterable[Path]) -> dict[str, str]:
    """Those of ``paths`` that it can read, write or connect to, and which of it."""
    done = as_another_user(ENTER, [str(path) for path in paths])
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@dataclass(frozen=True)
class OtherHost:
    """``address`` is how it knows this one."""

    pid: int
    address: str

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        inside = ("nsenter", f"--target={self.pid}", "--net")
        return subprocess.run(
            [*inside, *command], capture_output=True, text=True, check=False, **options
        )

    def reaches(self, ports: Iterable[int]) -> set[int]:
        """Which of ``ports`` accept a connection from there."""
        given = json.dumps([[self.address, port] for port in ports])
        done = self.run(sys.executable, "-c", KNOCK, input=given)
        assert done.returncode == 0, done.stderr
        return {port for _, port in json.loads(done.stdout)}


@contextmanager
def other_host() -> Iterator[OtherHost]:
    """Beside it, what this process starts meanwhile is on a network of two, on which it has an
    address and a way out."""
    with (
        Network() as network,
        subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) as process,
    ):
        try:
            _wait_for_own_network(process.pid)
            address = network.plug(HOST, 2, process.pid)
            # By this Ray finds its own address.
            subprocess.run(["ip", "route", "add", "default", "via", address], check=True)
            yield OtherHost(process.pid, CLIENT_ADDRESS)
        finally:
            process.kill()


def _wait_for_own_network(pid: int) -> None:
    ours = os.readlink("/proc/thread-self/ns/net")
    while os.readlink(f"/proc/{pid}/ns/net") == ours:
        os.sched_yield()


def listening_ports() -> set[int]:
    """On the network that this process is on, whatever the address."""
    lines = subprocess.run(
        ["ss", "--listening", "--tcp", "--numeric", "--no-header"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return {int(line.split()[3].rpartition(":")[2]) for line in lines}
