"""``python -m ops.cluster.isolation watch|wait FILE``: the watchdog of a head that is cut off.

When all other hosts fall silent at once, and so does the store, it is the head that has lost the
network. Its GCS would declare them dead, Serve's controller their replicas, and all of them would
end as soon as they hear of it. ``watch`` ends the GCS first, and with it the head; ``wait`` keeps
it from starting again before it reaches one of them. The store has all that the head knew, and
finds the hosts as they are.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]
from ray.exceptions import RpcError

logger = logging.getLogger("pomona")

Ports = Mapping[str, int]
"""Where each host's raylet, or the store, listens, by the host's address."""

PROBE_TIMEOUT_S = 2.0
PAUSE_S = 1.0
# Some 24 s: a switch that restarts is back by then, and Serve's controller, which gives a replica
# three times 30 s, has concluded nothing.
LOST_AFTER_PROBES = 8
# Hosts that are lost one by one over more time than this are not lost with the network.
AT_ONCE_PROBES = 4
GCS_TIMEOUT_S = 5


class Silence:
    """How many probes in a row each host has left unanswered. Of those that have never answered,
    or have not for long, nothing is concluded."""

    def __init__(self) -> None:
        self._unanswered: dict[str, int] = {}

    def take(self, answered: Mapping[str, bool]) -> None:
        """The answers to one probe of each host."""
        known = self._unanswered
        counts = {
            host: 0 if has_answered else known[host] + 1
            for host, has_answered in answered.items()
            if has_answered or host in known
        }
        limit = LOST_AFTER_PROBES + AT_ONCE_PROBES
        self._unanswered = {host: count for host, count in counts.items() if count < limit}

    @property
    def is_isolation(self) -> bool:
        """Whether all hosts are lost. One alone may just as well be gone itself."""
        lost = [count >= LOST_AFTER_PROBES for count in self._unanswered.values()]
        return len(lost) > 1 and all(lost)


def watch(file: Path, gcs_address: str, store: Ports, ray_start: int) -> None:
    """Until the head is isolated, or the process ``ray_start`` is not the parent any more.
    ``store`` is empty if the store is on the head's own host, where it tells nothing."""
    gcs = None
    own_address = gcs_address.rpartition(":")[0]
    silence = Silence()
    while os.getppid() == ray_start:
        try:
            gcs = gcs or GcsClient(gcs_address)
            ports = _other_hosts(gcs, own_address)
        except RpcError as error:
            logger.warning("The GCS does not say which hosts there are: %s", error)
        else:
            silence.take(probe(ports))
            if silence.is_isolation and not any(probe(store).values()):
                lost = {**ports, **store}
                logger.warning("All of %s are silent: the head ends.", _listed(lost))
                file.write_text(json.dumps(lost))
                _kill_gcs(ray_start)
                return
        time.sleep(PAUSE_S)


def wait(file: Path) -> None:
    """Until one of those that were lost can be reached."""
    if not file.exists():
        return
    ports = json.loads(file.read_text())
    logger.warning("Waits for any of %s, which %s names.", _listed(ports), file)
    while not any(probe(ports).values()):
        time.sleep(PAUSE_S)
    file.unlink()


def probe(ports: Ports) -> dict[str, bool]:
    """Whether each host answers."""
    with ThreadPoolExecutor(max(len(ports), 1)) as threads:
        return dict(zip(ports, threads.map(_answers, ports.items()), strict=True))


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, PROBE_TIMEOUT_S).close()
    except ConnectionRefusedError:
        # There is no raylet, but there is a network.
        return True
    except OSError:
        return False
    return True


def _other_hosts(gcs: GcsClient, own_address: str) -> dict[str, int]:
    """Those that the GCS believes to be alive. The head's own host may have two raylets."""
    nodes = gcs.get_all_node_info(timeout=GCS_TIMEOUT_S)
    return {
        node.node_manager_address: node.node_manager_port
        for node in nodes.values()
        if node.state == GcsNodeInfo.ALIVE and node.node_manager_address != own_address
    }


def _ports(address: str | None) -> dict[str, int]:
    if address is None:
        return {}
    host, _, port = address.rpartition(":")
    return {host: int(port)}


def _listed(ports: Ports) -> str:
    return ", ".join(sorted(ports))


def _kill_gcs(ray_start: int) -> None:
    for process in psutil.Process(ray_start).children(recursive=True):
        if process.name() == "gcs_server":
            process.kill()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("watch", "wait"):
        command = commands.add_parser(name)
        command.add_argument("file", type=Path, help="names the hosts that were lost")
    watching = commands.choices["watch"]
    watching.add_argument("gcs_address")
    watching.add_argument("--store", help="its address, if it is on another host")
    arguments = parser.parse_args()
    if arguments.command == "wait":
        wait(arguments.file)
    else:
        watch(arguments.file, arguments.gcs_address, _ports(arguments.store), os.getppid())


if __name__ == "__main__":
    main()
