"""Hosts that go on, but can't be reached for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.events import (
    Event,
    busiest,
    wait_until_nothing_is_asked_for,
)
from tests.support.cluster.load import Load
from tests.support.cluster.status import wait_until


def engine_host_cut_off(cluster: Cluster) -> Event:
    """It goes on, but nobody hears of it, until the cluster has given it up."""

    def happen(load: Load) -> float:
        host = busiest(cluster)
        moment = time.monotonic()
        host.cut()
        wait_until(
            lambda: cluster.is_serving(cluster.num_engines - 1), "the engine is known to be gone"
        )
        host.heal()
        return moment

    return Event(happen, lambda: cluster.is_serving(cluster.num_engines))


def head_cut_off(seconds: float) -> Callable[[Cluster], Event]:
    def event(cluster: Cluster) -> Event:
        head = cluster.hosts.head
        return partition(cluster, seconds, head.cut, head.heal)

    return event


def gateway_cut_off_from_head(seconds: float) -> Callable[[Cluster], Event]:
    """Its clients and the engines still reach it."""

    def event(cluster: Cluster) -> Event:
        head, (edge, *_) = cluster.hosts.head, cluster.hosts.edges
        return partition(
            cluster, seconds, lambda: edge.cut_from(head), lambda: edge.heal_with(head)
        )

    return event


def engines_cut_off(seconds: float) -> Callable[[Cluster], Event]:
    """All of them at once."""

    def event(cluster: Cluster) -> Event:
        def cut() -> None:
            for host in cluster.hosts.workers:
                host.cut()

        def heal() -> None:
            for host in cluster.hosts.workers:
                host.heal()

        return partition(cluster, seconds, cut, heal)

    return event


def partition(
    cluster: Cluster, seconds: float, cut: Callable[[], None], heal: Callable[[], None]
) -> Event:
    """Afterwards every gateway and engine is the one that it was."""
    old = set(cluster.targets)

    def happen(load: Load) -> float:
        wait_until_nothing_is_asked_for(cluster)
        moment = time.monotonic()
        cut()
        time.sleep(seconds)
        heal()
        healed_at = time.monotonic()
        # Whoever was declared dead has heard of it meanwhile.
        wait_until(lambda: load.all_began_again_after(healed_at), "requests are served")
        return moment

    def is_over() -> bool:
        return (
            cluster.can_be_deployed_to()
            and cluster.engines_have_settled(cluster.num_engines)
            and old == set(cluster.targets)
        )

    return Event(happen, is_over)
