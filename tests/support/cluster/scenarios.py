"""What may happen to a cluster while streams run on it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.host import Host
from tests.support.cluster.load import Load
from tests.support.cluster.status import wait_until

NUM_STREAMS = 200
NUM_ENGINES = 3
LEAST_MET = NUM_STREAMS // NUM_ENGINES - 10
"""Streams on an engine when it is lost; some clients may be between two of theirs."""


@dataclass(frozen=True)
class Event:
    happen: Callable[[Load], float]
    """Returns when, by ``time.monotonic``."""
    is_over: Callable[[], bool]
    """Whether the cluster is as it was."""


def engine_host_killed(cluster: Cluster) -> Event:
    """Its power fails, and comes back when the gateways have noticed."""

    def happen(load: Load) -> float:
        host = _busiest(cluster)
        moment = time.monotonic()
        host.kill()
        wait_until(lambda: cluster.is_serving(NUM_ENGINES - 1), "the engine is known to be gone")
        cluster.hosts.start(host)
        return moment

    return Event(happen, lambda: cluster.is_serving(NUM_ENGINES))


def engine_host_cut_off(cluster: Cluster) -> Event:
    """It goes on, but nobody hears of it, until the cluster has given it up."""

    def happen(load: Load) -> float:
        host = _busiest(cluster)
        moment = time.monotonic()
        host.cut()
        wait_until(lambda: cluster.is_serving(NUM_ENGINES - 1), "the engine is known to be gone")
        host.heal()
        return moment

    return Event(happen, lambda: cluster.is_serving(NUM_ENGINES))


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


def head_restarted(cluster: Cluster) -> Event:
    """It is back only when every client has begun another stream without it."""
    head = cluster.hosts.head
    old = set(cluster.targets)

    def happen(load: Load) -> float:
        _wait_until_nothing_is_asked_for(cluster)
        moment = time.monotonic()
        head.kill()
        wait_until(lambda: load.all_began_again_after(moment), "requests are served without it")
        cluster.hosts.start(head)
        return moment

    def is_over() -> bool:
        return cluster.can_be_deployed_to() and old == set(cluster.targets)

    return Event(happen, is_over)


def store_restarted(cluster: Cluster) -> Event:
    """The head does not go on without what it has to remember, and everybody else does."""
    hosts = cluster.hosts
    old = set(cluster.targets)
    ends = hosts.head.num_ends("pomona-ray")

    def happen(load: Load) -> float:
        _wait_until_nothing_is_asked_for(cluster)
        moment = time.monotonic()
        hosts.store.kill()
        wait_until(lambda: hosts.head.num_ends("pomona-ray") > ends, "the head ends")
        hosts.start(hosts.store)
        return moment

    def is_over() -> bool:
        return cluster.can_be_deployed_to() and old == set(cluster.targets)

    return Event(happen, is_over)


def host_joins_and_leaves(cluster: Cluster) -> Event:
    """One that the cluster has not known: its engine gets streams, and they outlive it."""
    host = cluster.hosts.spare

    def happen(load: Load) -> float:
        cluster.hosts.start(host)
        wait_until(lambda: cluster.requests_on(host.address) > 0, "the new engine has streams")
        moment = time.monotonic()
        host.kill()
        return moment

    return Event(happen, lambda: cluster.is_serving(NUM_ENGINES))


SCENARIOS: Mapping[str, Callable[[Cluster], Event]] = {
    "an engine's host killed": engine_host_killed,
    "an engine's host cut off": engine_host_cut_off,
    "the head killed, and back": head_restarted,
    "the store killed, and back": store_restarted,
    "rolling update": rolling_update,
    "another model": model_changed,
    "a host joins, and is killed": host_joins_and_leaves,
}


def _wait_until_nothing_is_asked_for(cluster: Cluster) -> None:
    """A replica that a lost head has asked a host for would get its place, and nobody would use
    it: Ray's hosts do not forget such requests. The runbook says how to free it."""
    wait_until(lambda: cluster.engines_have_settled(NUM_ENGINES), "Serve has all its engines")


def _busiest(cluster: Cluster) -> Host:
    """The engine's host with the most streams."""
    streams = {host: cluster.requests_on(host.address) for host in cluster.hosts.workers}
    host = max(streams, key=lambda one: streams[one])
    if streams[host] < LEAST_MET:
        raise RuntimeError(f"{host.name} has {streams[host]} streams; its loss would prove little")
    return host
