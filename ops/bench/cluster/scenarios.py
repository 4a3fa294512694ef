"""What happens to a cluster while streams run on it, and what comes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ops.bench.cluster.cluster import Cluster
from ops.bench.cluster.host import Host
from ops.bench.cluster.hosts import start_ray
from ops.bench.cluster.load import Load, next_token_after
from ops.bench.cluster.requests import Request
from ops.bench.cluster.status import wait_until
from ops.bench.cluster.streams import Stream

NUM_STREAMS = 200
NUM_ENGINES = 3


@dataclass(frozen=True)
class Event:
    name: str
    happen: Callable[[Load], None]
    is_over: Callable[[], bool]
    """Whether the cluster is as it was."""


@dataclass(frozen=True)
class Outcome:
    name: str
    streams: Sequence[Stream]
    failures: Sequence[str]
    next_token_s: float
    """From the event until the last stream that it met had its next token."""
    recovered_s: float

    @property
    def longest_silence_s(self) -> float:
        return max(stream.longest_silence_s() for stream in self.streams)


def observe(event: Event, url_of: Callable[[int], str], requests: Sequence[Request]) -> Outcome:
    """As many streams as there are requests run from before the event until it is over."""
    with Load(url_of, requests) as load:
        wait_until(lambda: load.num_running == len(requests), "all streams run at once")
        moment = time.monotonic()
        event.happen(load)
        wait_until(event.is_over, f"the cluster has recovered from: {event.name}")
        recovered_s = time.monotonic() - moment
    return Outcome(
        event.name,
        load.streams,
        load.failures,
        next_token_after(load.streams, moment),
        recovered_s,
    )


def engine_host_killed(cluster: Cluster, host: Host) -> Event:
    """Its power fails, and comes back when the others have noticed."""

    def happen(load: Load) -> None:
        assert cluster.requests_on(host.address) > NUM_STREAMS // 2 // NUM_ENGINES
        host.kill()
        wait_until(lambda: cluster.is_serving(NUM_ENGINES - 1), "one engine is gone")
        start_ray(cluster.hosts, host)

    return Event("an engine's host killed", happen, lambda: cluster.is_serving(NUM_ENGINES))


def rolling_update(cluster: Cluster, config: dict[str, Any]) -> Event:
    """``config`` changes both engines and gateways."""
    old = set(cluster.targets)

    def is_over() -> bool:
        return cluster.is_serving(NUM_ENGINES) and not old.intersection(cluster.targets)

    return Event("rolling update", lambda load: cluster.deploy(config), is_over)


def head_restarted(cluster: Cluster) -> Event:
    """Back only when every client has begun another stream without it."""
    head = cluster.hosts.head

    def happen(load: Load) -> None:
        head.kill()
        moment = time.monotonic()
        wait_until(lambda: load.all_began_again_after(moment), "requests are served without a head")
        start_ray(cluster.hosts, head)

    return Event("head restarted", happen, cluster.can_be_deployed_to)


def engine_host_cut(cluster: Cluster, host: Host) -> Event:
    def happen(load: Load) -> None:
        assert cluster.requests_on(host.address) > NUM_STREAMS // 2 // NUM_ENGINES
        host.cut()
        wait_until(lambda: cluster.is_serving(NUM_ENGINES - 1), "one engine is gone")
        host.heal()

    return Event("an engine's host cut off", happen, lambda: cluster.is_serving(NUM_ENGINES))
