"""What may happen to a cluster while clients are at work."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.host import Host
from tests.support.cluster.load import Load
from tests.support.cluster.status import PATIENCE_S, wait_until

NUM_STREAMS = int(os.environ.get("POMONA_CLUSTER_CLIENTS", "200"))
NUM_ENGINES = 3


@dataclass(frozen=True)
class Event:
    happen: Callable[[Load], float]
    """Returns when, by ``time.monotonic``."""
    is_over: Callable[[], bool]
    """Whether the cluster is as it was."""
    patience_s: float = PATIENCE_S
    """For that."""


def wait_until_nothing_is_asked_for(cluster: Cluster) -> None:
    """A replica that a lost head has asked a host for would get its place, and nobody would use
    it: Ray's hosts do not forget such requests. The runbook says how to free it."""
    wait_until(
        lambda: cluster.engines_have_settled(cluster.num_engines), "Serve has all its engines"
    )


def busiest(cluster: Cluster) -> Host:
    """The engine's host with the most streams: four fifths of its share at least, since some
    clients are between two streams."""
    host, *_ = by_streams(cluster)
    streams = cluster.requests_on(host.address)
    if streams < NUM_STREAMS * 4 // (cluster.num_engines * 5):
        raise RuntimeError(f"{host.name} has {streams} streams; its loss would prove little")
    return host


def by_streams(cluster: Cluster) -> Sequence[Host]:
    """The engines' hosts, the busiest first."""
    streams = {host: cluster.requests_on(host.address) for host in cluster.hosts.workers}
    return sorted(streams, key=lambda host: -streams[host])
