"""A host: processes with their own network card, process ids, and folders.

What it has on disk outlives it, as a machine's disk does.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import psutil

from ops.cluster.units import RESTART_S
from tests.support.cluster.network import Network, address_of

START_TIMEOUT_S = 10.0
STATE = "/mnt/pomona"
"""Where every host has a folder of its own."""
LEFT_BYTES = 32 << 20
FILLER = f"{STATE}/filler"
TEMPORARY = "/mnt/tmp"
SHARED_MEMORY = "1g"
SMALL_DISK = "512m"
NOBODYS_CARD = "02:00:00:00:00:ff"

_BOOT = """
mount -t tmpfs tmpfs {state_parent}
mkdir {state} {temporary}
mount --bind {disk} {state}
mount -t tmpfs -o size={memory} tmpfs /dev/shm
hostname {name}
touch {folder}/up
# The first process of a host takes in those that lose their parents.
while :; do sleep 1000 & wait; done
"""

# As launchd and systemd do it: whatever way it ends, it is started again.
_ENDED = "supervisor: ended"
_SUPERVISE = """
ulimit -n "$(ulimit -Hn)"
while :; do
    "$@"
    echo "{ended} with status $?, starting again"
    sleep {pause}
done
"""


_TENTH = """
processes=$(pgrep -f {part} | grep -vw $$)
SECONDS=0
while [ $SECONDS -lt {seconds:.0f} ]; do
    kill -STOP $processes
    sleep {stopped_s}
    kill -CONT $processes
    sleep {runs_s}
done
"""


class Host:
    def __init__(self, network: Network, folder: Path, name: str, number: int) -> None:
        self._network = network
        self.name = name
        self.number = number
        self.address = address_of(number)
        self.folder = folder / name
        self.home = self.folder / "home"
        self._disk = self.folder / "state"
        self._root: subprocess.Popen[bytes] | None = None
        self._init = 0
        for one in (self.home, self._disk):
            one.mkdir(parents=True)

    @property
    def is_up(self) -> bool:
        return self._root is not None

    def mount_small_disk(self) -> None:
        """As long as ``unmount_small_disk`` was not called, whether the host is up or down."""
        size = f"size={SMALL_DISK}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", self._disk], check=True)

    def unmount_small_disk(self) -> None:
        subprocess.run(["umount", "--lazy", self._disk], check=True)

    def fill_disk(self) -> None:
        """But for what a process's first lines take: without any, Ray starts none that could say
        what is wrong."""
        size = psutil.disk_usage(str(self._disk)).free - LEFT_BYTES
        self.run("fallocate", "--length", str(size), FILLER).check_returncode()

    def clear_disk(self) -> None:
        self.run("rm", FILLER).check_returncode()

    def boot(self) -> None:
        """Power on, with nothing running yet."""
        (self.folder / "up").unlink(missing_ok=True)
        script = _BOOT.format(
            folder=self.folder,
            disk=self._disk,
            memory=SHARED_MEMORY,
            name=self.name,
            state=STATE,
            temporary=TEMPORARY,
            state_parent=Path(STATE).parent,
        )
        # Whatever ends this process ends the host.
        self._root = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL"),
                *("unshare", "--net", "--uts", "--mount", "--mount-proc"),
                *("--pid", "--fork", "--kill-child"),
                *("bash", "-euc", script),
            ],
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (self.folder / "up").exists():
            if self._root.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not boot")
            time.sleep(0.01)
        [init] = psutil.Process(self._root.pid).children()
        self._init = init.pid
        self._network.plug(self.name, self.number, self._init)

    def kill(self) -> None:
        """Power off: all its processes end at once, and nobody is told."""
        if self._root is not None:
            self._root.kill()
            self._root.wait()
            _wait_for_end(self._init)
            self._root = None

    def make_disk(self, access: Literal["ro", "rw"]) -> None:
        """Read-only or writable, for a host that has booted and runs nothing yet."""
        self.run("mount", "-o", f"remount,bind,{access}", STATE).check_returncode()

    def cut(self) -> None:
        self._network.cut(self.name)

    def heal(self) -> None:
        self._network.heal(self.name)

    def cut_from(self, other: Host) -> None:
        """Packets between the two are lost in silence, and no others."""
        for one, peer in ((self, other), (other, self)):
            nobody = ("lladdr", NOBODYS_CARD, "nud", "permanent")
            one._ip("neigh", "replace", peer.address, "dev", "eth0", *nobody)

    def heal_with(self, other: Host) -> None:
        for one, peer in ((self, other), (other, self)):
            one._ip("neigh", "del", peer.address, "dev", "eth0")

    def lose_packets(self, percent: int) -> None:
        self._network.lose_packets(self.name, percent)

    def lose_none(self) -> None:
        self._network.lose_none()

    def kill_process(self, part: str) -> None:
        """Those with ``part`` in their command lines end at once."""
        self.signal_process("KILL", part)

    def signal_process(self, signal: str, part: str) -> None:
        """To those with ``part`` in their command lines."""
        self.run("pkill", f"-{signal}", "-f", part).check_returncode()

    def slow_process(self, part: str, seconds: float, *, turn_s: float = 0.1) -> None:
        """Those with ``part`` in their command lines have a tenth of each turn, for ``seconds``."""
        script = _TENTH.format(
            part=part, seconds=seconds, stopped_s=0.9 * turn_s, runs_s=0.1 * turn_s
        )
        self.run("bash", "-euc", script).check_returncode()

    def start(self, service: str, command: Sequence[str]) -> None:
        """Run ``command`` for as long as the host is up, from its end to the next. Its output is in
        ``log(service)``."""
        script = _SUPERVISE.format(ended=_ENDED, pause=RESTART_S)
        supervised = ("bash", "-c", script, "supervisor", *command)
        with self.log(service).open("ab") as log:
            subprocess.Popen(
                [*self._entered(), *supervised],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                cwd=self.home,
            )

    def num_ends(self, service: str) -> int:
        """How often ``service`` has ended and been started again."""
        return self.log(service).read_text(errors="replace").count(_ENDED)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run ``command`` to its end, and take its output."""
        return subprocess.run(
            [*self._entered(), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment(),
            cwd=self.home,
            text=True,
        )

    def _ip(self, *arguments: str) -> None:
        self.run("ip", *arguments).check_returncode()

    def log(self, service: str) -> Path:
        return self.folder / f"{service}.log"

    def _entered(self) -> tuple[str, ...]:
        return ("nsenter", f"--target={self._init}", "--net", "--uts", "--mount", "--pid")

    def _environment(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], "TMPDIR": TEMPORARY}


def _wait_for_end(pid: int) -> None:
    try:
        psutil.Process(pid).wait(START_TIMEOUT_S)
    except psutil.NoSuchProcess:
        return
