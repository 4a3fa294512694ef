"""Four hosts with an engine and a gateway each, of which one is also the head and one the store's:
what happens to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
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
from tests.support.cluster.status import wait_until
from tests.support.cluster.updates import UPDATE_S

NUM_HOSTS = 4
GATEWAY_PROCESS = "pomona:Gateway"
STORE_PROCESS = "redis-server"
"""In their command lines."""
STORE_PORT = 6379


def store_host_restarted(cluster: Cluster) -> Event:
    """The head ends with the store, and all that its host serves goes on."""
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
        return is_whole(cluster) and kept < set(cluster.targets)

    return Event(happen, is_over)


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

        return partition(cluster, seconds, cut, heal)

    return event


def store_refuses_writes(cluster: Cluster) -> Event:
    """For a minute, in which an engine's process ends."""
    *_, host = cluster.hosts.workers

    def happen(load: Load) -> float:
        wait_until_nothing_is_asked_for(cluster)
        moment = time.monotonic()
        # Redis, which has no replica, refuses writes if it must have one, and still reads.
        _redis(cluster, "CONFIG", "SET", "min-replicas-to-write", "1")
        host.kill_process(ENGINE_PROCESS)
        time.sleep(60)
        _redis(cluster, "CONFIG", "SET", "min-replicas-to-write", "0")
        return moment

    return Event(happen, lambda: is_whole(cluster))


def slow_engine(cluster: Cluster) -> Event:
    """It has a tenth of a core for a minute."""
    *_, host = cluster.hosts.workers

    def happen(load: Load) -> float:
        moment = time.monotonic()
        host.slow_process(ENGINE_PROCESS, 60)
        return moment

    return Event(happen, lambda: is_whole(cluster))


def gateway_stopped(cluster: Cluster) -> Event:
    """It hangs, until all of its clients have gone on elsewhere."""
    *_, host = cluster.hosts.workers

    def happen(load: Load) -> float:
        moment = time.monotonic()
        host.signal_process("STOP", GATEWAY_PROCESS)
        wait_until(lambda: load.all_began_again_after(moment), "every client has another stream")
        host.signal_process("CONT", GATEWAY_PROCESS)
        return moment

    return Event(happen, lambda: is_whole(cluster))


def update_that_cannot_start(why: str, **engine: Any) -> Callable[[Cluster], Event]:
    """Until somebody reads ``why``, and takes it back."""

    def event(cluster: Cluster) -> Event:
        def happen(load: Load) -> float:
            moment = time.monotonic()
            cluster.deploy(**engine)
            wait_until(
                lambda: any(why in one for one in cluster.messages()), "Serve says why", UPDATE_S
            )
            cluster.deploy()
            return moment

        return Event(happen, lambda: is_whole(cluster))

    return event


def slow_store(cluster: Cluster) -> Event:
    """It answers up to 0.9 s late for a minute, in which an engine's process ends."""
    *_, host = cluster.hosts.workers

    def happen(load: Load) -> float:
        moment = time.monotonic()
        host.kill_process(ENGINE_PROCESS)
        cluster.hosts.store.slow_process(STORE_PROCESS, 60, turn_s=1)
        return moment

    return Event(happen, lambda: is_whole(cluster))


def store_emptied(cluster: Cluster) -> Event:
    """And then an engine's process ends."""
    *_, host = cluster.hosts.workers

    def happen(load: Load) -> float:
        wait_until_nothing_is_asked_for(cluster)
        moment = time.monotonic()
        _redis(cluster, "FLUSHALL")
        host.kill_process(ENGINE_PROCESS)
        return moment

    return Event(happen, lambda: is_whole(cluster))


def head_host_restarted_in_update(cluster: Cluster) -> Event:
    """Once the first engine or gateway has been replaced."""
    old = set(cluster.targets)
    head = cluster.hosts.head

    def happen(load: Load) -> float:
        cluster.deploy()
        wait_until(lambda: bool(set(cluster.targets) - old), "the update has begun", UPDATE_S)
        moment = time.monotonic()
        head.kill()
        cluster.hosts.start(head)
        return moment

    return Event(happen, lambda: is_whole(cluster) and not old.intersection(cluster.targets))


def two_updates(cluster: Cluster) -> Event:
    """The second comes 5 s after the first."""
    old = set(cluster.targets)

    def happen(load: Load) -> float:
        moment = time.monotonic()
        cluster.deploy()
        time.sleep(max(0.0, moment + 5 - time.monotonic()))
        cluster.deploy()
        return moment

    return Event(happen, lambda: is_whole(cluster) and not old.intersection(cluster.targets))


def packets_lost(cluster: Cluster) -> Event:
    """A fifth of those to and from one host, for a minute."""
    *_, host = cluster.hosts.workers

    def happen(load: Load) -> float:
        moment = time.monotonic()
        host.lose_packets(20)
        time.sleep(60)
        host.lose_none()
        return moment

    return Event(happen, lambda: is_whole(cluster))


def prompt_lost_in_prefill(cluster: Cluster) -> Event:
    """With its engine's process, before the first token."""

    def happen(load: Load) -> float:
        busy: list[Host] = []

        def is_computed() -> bool:
            busy[:] = by_streams(cluster)[:1]
            return not load.num_running and cluster.requests_on(busy[0].address) > 0

        wait_until(is_computed, "an engine has the prompt, and the client no token")
        moment = time.monotonic()
        busy[0].kill_process(ENGINE_PROCESS)
        return moment

    return Event(happen, lambda: is_whole(cluster))


def read_only_disk(cluster: Cluster) -> Event:
    """A host comes back with a disk that nothing can be written to, for a minute."""
    *_, host = cluster.hosts.workers

    def happen(load: Load) -> float:
        moment = time.monotonic()
        host.kill()
        host.boot()
        host.make_disk("ro")
        cluster.hosts.start_services(host)
        time.sleep(60)
        host.make_disk("rw")
        return moment

    return Event(happen, lambda: is_whole(cluster))


def store_certificate_expired(cluster: Cluster) -> Event:
    """The store and the head, which read theirs when they start, end until it is replaced."""
    hosts = cluster.hosts
    ends = hosts.head.num_ends("pomona-head")

    def happen(load: Load) -> float:
        wait_until_nothing_is_asked_for(cluster)
        moment = time.monotonic()
        with patch.object(credentials, "VALID_FOR", timedelta(hours=1)):
            hosts.rotate_store_certificates()
        hosts.store.kill_process(STORE_PROCESS)
        wait_until(lambda: hosts.head.num_ends("pomona-head") > ends + 1, "no head can start")
        hosts.rotate_store_certificates()
        hosts.store.kill_process(STORE_PROCESS)
        return moment

    return Event(happen, lambda: is_whole(cluster))


def is_whole(cluster: Cluster) -> bool:
    return (
        cluster.is_serving(NUM_HOSTS)
        and cluster.can_be_deployed_to()
        and cluster.engines_have_settled(NUM_HOSTS)
    )


def _redis(cluster: Cluster, *command: str) -> None:
    store = cluster.hosts.store
    files = ("--cacert", STORE_CA), ("--cert", STORE_CLIENT), ("--key", STORE_CLIENT_KEY)
    secrets = cluster.hosts.folder / "services" / SECRETS
    store.run(
        *("redis-cli", "-h", store.address, "-p", str(STORE_PORT), "--tls"),
        *(part for option, name in files for part in (option, str(secrets / name))),
        *command,
    ).check_returncode()
