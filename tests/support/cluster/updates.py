"""Deployments, of something else and of another model."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.events import NUM_ENGINES, Event
from tests.support.cluster.load import Load


def rolling_update(cluster: Cluster) -> Event:
    """Of all engines and gateways."""
    old = set(cluster.targets)

    def happen(load: Load) -> float:
        moment = time.monotonic()
        cluster.deploy()
        return moment

    def is_over() -> bool:
        return cluster.is_serving(NUM_ENGINES) and not old.intersection(cluster.targets)

    return Event(happen, is_over)


def model_changed(cluster: Cluster) -> Event:
    """Under the same name; from the one to the other, or back."""
    other = cluster.folder / "changed-model"
    if not other.exists():
        program = [sys.executable, "-m", "tests.support.cluster.changed_model", str(other)]
        subprocess.run(program, check=True)
    cluster.model = str(other) if cluster.model == "demo" else "demo"
    return rolling_update(cluster)
