"""Four hosts with an engine and a gateway each, of which one is also the head and one the store's:
what happens to them."""

from __future__ import annotations

import time
from collections.abc import Callable

from ops.cluster.credentials import STORE_CA, STORE_CLIENT, STORE_CLIENT_KEY
from ops.cluster.host_list import SECRETS
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.events import Event, wait_until_nothing_is_asked_for
from tests.support.cluster.load import Load
from tests.support.cluster.losses import ENGINE_PROCESS
from tests.support.cluster.partitions import partition
from tests.support.cluster.status import wait_until
from tests.support.cluster.updates import UPDATE_S

NUM_HOSTS = 4
GATEWAY_PROCESS = "pomona:Gateway"
"""In its command line."""
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
        _set_replicas_to_write(cluster, 1)
        host.kill_process(ENGINE_PROCESS)
        time.sleep(60)
        _set_replicas_to_write(cluster, 0)
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


def config_that_cannot_start(cluster: Cluster) -> Event:
    """An update to a model that is nowhere, until somebody reads why and takes it back."""
    absent = str(cluster.folder / "absent-model")

    def happen(load: Load) -> float:
        moment = time.monotonic()
        _deploy(cluster, absent)
        wait_until(
            lambda: any(absent in one for one in cluster.messages()), "Serve says why", UPDATE_S
        )
        _deploy(cluster, "demo")
        return moment

    return Event(happen, lambda: is_whole(cluster))


def is_whole(cluster: Cluster) -> bool:
    return (
        cluster.is_serving(NUM_HOSTS)
        and cluster.can_be_deployed_to()
        and cluster.engines_have_settled(NUM_HOSTS)
    )


def _deploy(cluster: Cluster, model: str) -> None:
    cluster.model = model
    cluster.deploy()


def _set_replicas_to_write(cluster: Cluster, least: int) -> None:
    """Redis, which has no replica, refuses writes if it must have one, and still reads."""
    store = cluster.hosts.store
    files = ("--cacert", STORE_CA), ("--cert", STORE_CLIENT), ("--key", STORE_CLIENT_KEY)
    secrets = cluster.hosts.folder / "services" / SECRETS
    store.run(
        *("redis-cli", "-h", store.address, "-p", str(STORE_PORT), "--tls"),
        *(part for option, name in files for part in (option, str(secrets / name))),
        *("config", "set", "min-replicas-to-write", str(least)),
    ).check_returncode()
