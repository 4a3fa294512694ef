"""Hosts and engines that are lost."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.events import (
    Event,
    busiest,
    by_streams,
    wait_until_nothing_is_asked_for,
)
from tests.support.cluster.load import Load
from tests.support.cluster.status import Target, wait_until

ENGINE_PROCESS = "EngineReplica"
"""In its command line."""


def engine_host_killed(cluster: Cluster) -> Event:
    """Its power fails, and comes back when the gateways have noticed."""

    def happen(load: Load) -> float:
        host = busiest(cluster)
        moment = time.monotonic()
        host.kill()
        wait_until(
            lambda: cluster.is_serving(cluster.num_engines - 1), "the engine is known to be gone"
        )
        cluster.hosts.start(host)
        return moment

    return Event(happen, lambda: cluster.is_serving(cluster.num_engines))


def two_engine_hosts_killed(cluster: Cluster) -> Event:
    """A power strip fails, and comes back when the gateways have noticed."""

    def happen(load: Load) -> float:
        hosts = by_streams(cluster)[:2]
        moment = time.monotonic()
        for host in hosts:
            host.kill()
        wait_until(
            lambda: cluster.is_serving(cluster.num_engines - 2), "the engines are known to be gone"
        )
        for host in hosts:
            cluster.hosts.start(host)
        return moment

    return Event(happen, lambda: cluster.is_serving(cluster.num_engines))


def engines_killed(count: int, *, apart_s: float) -> Callable[[Cluster], Event]:
    """Their processes end one after the other, and their hosts stay."""

    def event(cluster: Cluster) -> Event:
        lost: set[Target] = set()

        def happen(load: Load) -> float:
            hosts = by_streams(cluster)[:count]
            addresses = [host.address for host in hosts]
            lost.update(engine for engine in cluster.engines if engine.node in addresses)
            moment = time.monotonic()
            for number, host in enumerate(hosts):
                time.sleep(max(0.0, moment + number * apart_s - time.monotonic()))
                host.kill_process(ENGINE_PROCESS)
            return moment

        def is_over() -> bool:
            return cluster.is_serving(cluster.num_engines) and not lost.intersection(
                cluster.engines
            )

        return Event(happen, is_over)

    return event


def gateway_host_killed(cluster: Cluster) -> Event:
    """Its power fails, with all streams that it carries, and comes back when each of them has gone
    on elsewhere."""
    host, *_ = cluster.hosts.edges

    def happen(load: Load) -> float:
        moment = time.monotonic()
        host.kill()
        wait_until(lambda: load.all_began_again_after(moment), "every client has another stream")
        cluster.hosts.start(host)
        return moment

    return Event(happen, lambda: cluster.is_serving(cluster.num_engines))


def head_restarted(cluster: Cluster) -> Event:
    """It is back only when every client has begun another stream without it."""
    head = cluster.hosts.head
    old = set(cluster.targets)

    def happen(load: Load) -> float:
        wait_until_nothing_is_asked_for(cluster)
        moment = time.monotonic()
        head.kill()
        wait_until(lambda: load.all_began_again_after(moment), "requests are served without it")
        cluster.hosts.start(head)
        return moment

    def is_over() -> bool:
        return cluster.can_be_deployed_to() and old == set(cluster.targets)

    return Event(happen, is_over)


def store_restarted(cluster: Cluster) -> Event:
    """With its host. The head does not go on without what it has to remember, and all that other
    hosts serve does."""
    hosts = cluster.hosts
    kept = {one for one in cluster.targets if one.node != hosts.store.address}
    ends = hosts.head.num_ends("pomona-head")

    def happen(load: Load) -> float:
        wait_until_nothing_is_asked_for(cluster)
        moment = time.monotonic()
        hosts.store.kill()
        wait_until(lambda: hosts.head.num_ends("pomona-head") > ends, "the head ends")
        hosts.start(hosts.store)
        return moment

    def is_over() -> bool:
        return cluster.is_whole() and kept <= set(cluster.targets)

    return Event(happen, is_over)


def host_joins_and_leaves(cluster: Cluster) -> Event:
    """One that the cluster has not known: its engine gets streams, and they outlive it."""
    (host,) = cluster.hosts.spares

    def happen(load: Load) -> float:
        cluster.hosts.start(host)
        wait_until(lambda: cluster.requests_on(host.address) > 0, "the new engine has streams")
        moment = time.monotonic()
        host.kill()
        return moment

    return Event(happen, lambda: cluster.is_serving(cluster.num_engines))
