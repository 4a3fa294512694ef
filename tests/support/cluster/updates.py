"""Deployments: of something else, of another model, and on a host without room for it."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.events import Event
from tests.support.cluster.load import Load
from tests.support.cluster.status import wait_until

UPDATE_S = 900.0
"""For a host's turn to come in an update, and for what it waits for first."""


def rolling_update(cluster: Cluster) -> Event:
    """Of all engines and gateways."""
    old = set(cluster.targets)

    def happen(load: Load) -> float:
        moment = time.monotonic()
        cluster.deploy()
        return moment

    def is_over() -> bool:
        return cluster.is_serving(cluster.num_engines) and not old.intersection(cluster.targets)

    return Event(happen, is_over)


def model_changed(cluster: Cluster) -> Event:
    """Under the same name; from the one to the other, or back."""
    other = cluster.folder / "changed-model"
    if not other.exists():
        program = [sys.executable, "-m", "tests.support.cluster.changed_model", str(other)]
        subprocess.run(program, check=True)
    cluster.model = str(other) if cluster.model == "demo" else "demo"
    return rolling_update(cluster)


def full_disk(cluster: Cluster) -> Event:
    """One engine's host has no room left when all engines and gateways are to be replaced. Somebody
    reads why and makes room; the update goes on by itself."""
    host = cluster.hosts.workers[0]
    old = set(cluster.targets)

    def happen(load: Load) -> float:
        host.fill_disk()
        moment = time.monotonic()
        cluster.deploy()
        why = f"the disk of {host.name} is full"
        wait_until(
            lambda: any(why in one for one in cluster.messages()), "Serve says why", UPDATE_S
        )
        host.clear_disk()
        return moment

    def is_over() -> bool:
        return cluster.is_serving(cluster.num_engines) and not old.intersection(cluster.targets)

    return Event(happen, is_over)
