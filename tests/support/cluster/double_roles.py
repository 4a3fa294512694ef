"""Four hosts with an engine and a gateway each, of which one is also the head and one the store's:
what happens to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

from ops.cluster import credentials
from ops.cluster.credentials import STORE_CA, STORE_CLIENT, STORE_CLIENT_KEY
from ops.cluster.host_list import SECRETS
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.events import Event, by_streams, wait_until_nothing_is_asked_for
from tests.support.cluster.host import Host
from tests.support.cluster.load import Load
from tests.support.cluster.losses import ENGINE_PROCESS
from tests.support.cluster.partitions import partition
from tests.support.cluster.status import Target, wait_until
from tests.support.cluster.updates import UPDATE_S

NUM_HOSTS = 4
GATEWAY_PROCESS = "pomona:Gateway"
STORE_PROCESS = "redis-server"
"""In their command lines."""
STORE_PORT = 6379
Happening = Callable[[Cluster, Load], float]
"""Returns when it happened, by ``time.monotonic``."""


def until_whole(happen: Happening) -> Callable[[Cluster], Event]:
    """It is over when all hosts serve and the head answers."""
    return lambda cluster: Event(partial(happen, cluster), cluster.is_whole)


def two_others_cut_off(seconds: float) -> Callable[[Cluster], Event]:
    """The head still reaches the store."""

    def event(cluster: Cluster) -> Event:
        _, _, *others = cluster.hosts.workers

        def cut() -> None:
            for host in others:
                host.cut()

        def heal() -> None:
            for host in others:
                host.heal()

        cut_off = partition(cluster, seconds, cut, heal)
        # TCP takes as long again to find a network that is back, and Serve gives up after 90 s.
        return cut_off if seconds < 30 else replace(cut_off, is_over=cluster.is_whole)

    return event


@until_whole
def store_refuses_writes(cluster: Cluster, load: Load) -> float:
    """For a minute, in which an engine's process ends."""
    wait_until_nothing_is_asked_for(cluster)
    moment = time.monotonic()
    # Redis, which has no replica, refuses writes if it must have one, and still reads.
    _redis(cluster, "CONFIG", "SET", "min-replicas-to-write", "1")
    _last_host(cluster).kill_process(ENGINE_PROCESS)
    time.sleep(60)
    _redis(cluster, "CONFIG", "SET", "min-replicas-to-write", "0")
    return moment


@until_whole
def slow_store(cluster: Cluster, load: Load) -> float:
    """It answers up to 0.9 s late for a minute, in which an engine's process ends."""
    moment = time.monotonic()
    _last_host(cluster).kill_process(ENGINE_PROCESS)
    cluster.hosts.store.slow_process(STORE_PROCESS, 60, turn_s=1)
    return moment


@until_whole
def store_emptied(cluster: Cluster, load: Load) -> float:
    """An engine's process that ends then is not replaced, until somebody reads why and starts the
    head again."""
    wait_until_nothing_is_asked_for(cluster)
    moment = time.monotonic()
    _redis(cluster, "FLUSHALL")
    _last_host(cluster).kill_process(ENGINE_PROCESS)
    why = "got <class 'NoneType'>"
    wait_until(lambda: any(why in one for one in cluster.messages()), "Serve says why")
    cluster.hosts.head.kill_process("gcs_server")
    return moment


@until_whole
def store_certificate_expired(cluster: Cluster, load: Load) -> float:
    """The store and the head, which read theirs when they start, end until it is replaced."""
    hosts = cluster.hosts
    wait_until_nothing_is_asked_for(cluster)
    ends = hosts.head.num_ends("pomona-head")
    moment = time.monotonic()
    with patch.object(credentials, "VALID_FOR", timedelta(hours=1)):
        hosts.rotate_store_certificates()
    hosts.store.kill_process(STORE_PROCESS)
    wait_until(lambda: hosts.head.num_ends("pomona-head") > ends + 1, "no head can start")
    hosts.rotate_store_certificates()
    hosts.store.kill_process(STORE_PROCESS)
    return moment


@until_whole
def slow_engine(cluster: Cluster, load: Load) -> float:
    """It has a tenth of a core for a minute."""
    moment = time.monotonic()
    _last_host(cluster).slow_process(ENGINE_PROCESS, 60)
    return moment


@until_whole
def gateway_stopped(cluster: Cluster, load: Load) -> float:
    """It hangs, until all of its clients have gone on elsewhere."""
    host = _last_host(cluster)
    moment = time.monotonic()
    host.signal_process("STOP", GATEWAY_PROCESS)
    wait_until(lambda: load.all_began_again_after(moment), "every client has another stream")
    host.signal_process("CONT", GATEWAY_PROCESS)
    return moment


@until_whole
def prompt_lost_in_prefill(cluster: Cluster, load: Load) -> float:
    """With its engine's process, before the first token."""
    busy: list[Host] = []

    def is_computed() -> bool:
        busy[:] = by_streams(cluster)[:1]
        return not load.num_running and cluster.requests_on(busy[0].address) > 0

    wait_until(is_computed, "an engine has the prompt, and the client no token")
    moment = time.monotonic()
    busy[0].kill_process(ENGINE_PROCESS)
    return moment


@until_whole
def packets_lost(cluster: Cluster, load: Load) -> float:
    """A fifth of those to and from one host, for a minute."""
    host = _last_host(cluster)
    moment = time.monotonic()
    host.lose_packets(20)
    time.sleep(60)
    host.lose_none()
    return moment


@until_whole
def read_only_disk(cluster: Cluster, load: Load) -> float:
    """A host comes back with a disk that nothing can be written to, for a minute."""
    host = _last_host(cluster)
    moment = time.monotonic()
    host.kill()
    host.boot()
    host.make_disk("ro")
    cluster.hosts.start_services(host)
    time.sleep(60)
    host.make_disk("rw")
    return moment


def update_that_cannot_start(why: str, **engine: Any) -> Callable[[Cluster], Event]:
    """Until somebody reads ``why``, and takes it back."""

    def happen(cluster: Cluster, load: Load) -> float:
        moment = time.monotonic()
        cluster.deploy(**engine)
        wait_until(
            lambda: any(why in one for one in cluster.messages()), "Serve says why", UPDATE_S
        )
        cluster.deploy()
        return moment

    return until_whole(happen)


def updated(happen: Callable[[Cluster, set[Target]], float]) -> Callable[[Cluster], Event]:
    """It is over when all engines and gateways are others than before, which ``happen`` gets."""

    def event(cluster: Cluster) -> Event:
        old = set(cluster.targets)
        return Event(
            lambda load: happen(cluster, old),
            lambda: cluster.is_whole() and not old.intersection(cluster.targets),
            UPDATE_S,
        )

    return event


@updated
def two_updates(cluster: Cluster, old: set[Target]) -> float:
    """The second comes 5 s after the first."""
    moment = time.monotonic()
    cluster.deploy()
    time.sleep(max(0.0, moment + 5 - time.monotonic()))
    cluster.deploy()
    return moment


@updated
def head_host_restarted_in_update(cluster: Cluster, old: set[Target]) -> float:
    """Once the first engine or gateway has been replaced."""
    head = cluster.hosts.head
    cluster.deploy()
    wait_until(lambda: bool(set(cluster.targets) - old), "the update has begun", UPDATE_S)
    moment = time.monotonic()
    head.kill()
    cluster.hosts.start(head)
    return moment


def _last_host(cluster: Cluster) -> Host:
    """Neither the head's nor the store's."""
    return cluster.hosts.workers[-1]


def _redis(cluster: Cluster, *command: str) -> None:
    store = cluster.hosts.store
    files = ("--cacert", STORE_CA), ("--cert", STORE_CLIENT), ("--key", STORE_CLIENT_KEY)
    secrets = cluster.hosts.folder / "services" / SECRETS
    store.run(
        *("redis-cli", "-h", store.address, "-p", str(STORE_PORT), "--tls"),
        *(part for option, name in files for part in (option, str(secrets / name))),
        *command,
    ).check_returncode()
