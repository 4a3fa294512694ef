"""Engines come and go with the load, and gateways with their hosts; no client notices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.deployment import configuration
from tests.support.cluster.hosts import Hosts, hosts
from tests.support.cluster.load import Load
from tests.support.cluster.network import Network
from tests.support.cluster.outcome import Outcome
from tests.support.cluster.requests import Request, requests
from tests.support.cluster.said import Said
from tests.support.cluster.status import Target, gateway_url, is_ready, requests_on, wait_until

pytestmark = pytest.mark.cluster

MAX_NUM_SEQS = 8
CROWD = requests(64, tokens=(40, 120))
"""More than all engines take at once: some wait."""
FEW = requests(4, seed=7, tokens=(700, 1000))
"""Little enough for one engine."""
AT_ONCE_IN_PEACE = 5


def configured() -> dict[str, Any]:
    config = configuration(
        engine={"max_num_seqs": MAX_NUM_SEQS, "num_kv_blocks": MAX_NUM_SEQS * 128}
    )
    engines, gateways = (application["args"] for application in config["applications"])
    # Each engine has some of the few.
    gateways["routing"] = {"policy": "least_outstanding_tokens"}
    engines["autoscaling"] = {"min_replicas": 1, "upscale_delay_s": 1, "downscale_delay_s": 5}
    # Shorter than a stream of ``FEW``: what an engine has not finished goes on at another.
    for arguments in (engines, gateways):
        arguments["replica"] = {"drain_timeout_s": 8}
    return config


@pytest.fixture(scope="module")
def all_hosts(may_have_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Off, but ready to start."""
    folder = tmp_path_factory.mktemp("fleet")
    with Network() as network, hosts(network, folder, num_workers=2) as made:
        made.write_services(configured())
        yield made


@pytest.fixture(scope="module")
def fleet(all_hosts: Hosts) -> Cluster:
    """One engine of two that may be, and one gateway; the other gateway's host is off."""
    first, _ = all_hosts.edges
    running = Cluster(replace(all_hosts, edges=(first,)), all_hosts.folder)
    for host in (all_hosts.store, all_hosts.head, *all_hosts.workers, first):
        all_hosts.start(host)
    wait_until(lambda: running.is_serving(1), "one engine serves")
    return running


@pytest.fixture(scope="module")
def answers(fleet: Cluster) -> dict[str, list[Said]]:
    """By one engine that is never full."""
    return {"crowd": in_peace(fleet, CROWD), "few": in_peace(fleet, FEW)}


def in_peace(fleet: Cluster, asked: list[Request]) -> list[Said]:
    said: list[Said] = []
    for start in range(0, len(asked), AT_ONCE_IN_PEACE):
        with Load(fleet.gateway_of, asked[start : start + AT_ONCE_IN_PEACE]) as load:
            pass
        assert outcome(load).failures == []
        said += [stream.said for stream in load.streams]
    return said


def outcome(load: Load) -> Outcome:
    return Outcome(load.streams, 0.0, 0.0)


def gateways(fleet: Cluster) -> list[Target]:
    return [target for target in fleet.targets if target.component == "gateway"]


def waits_for_scale(fleet: Cluster, num_engines: int) -> None:
    wait_until(lambda: len(fleet.engines) == num_engines, f"there are {num_engines} engines")


def test_engines_follow_the_load(fleet: Cluster, answers: Mapping[str, list[Said]]) -> None:
    waits_for_scale(fleet, 1)
    with Load(fleet.gateway_of, CROWD) as crowd:
        waits_for_scale(fleet, 2)
        wait_until(lambda: all(map(requests_on, fleet.engines)), "both engines have streams")
    assert outcome(crowd).failures == []
    assert outcome(crowd).differences(answers["crowd"]) == []

    with Load(fleet.gateway_of, FEW) as few:
        last_seen: dict[Target, int] = {}

        def is_small() -> bool:
            engines = fleet.engines
            last_seen.update({engine: requests_on(engine) for engine in engines})
            return len(engines) == 1

        wait_until(is_small, "one engine is let go")
        [kept] = fleet.engines
        given_up = [num_streams for engine, num_streams in last_seen.items() if engine != kept]
        assert len(given_up) == 1
        assert given_up[0] > 0, "the engine that is let go has no stream to lose"
        wait_until(lambda: fleet.engines_have_settled(1), "Serve is content with one engine")
    assert outcome(few).failures == []
    assert outcome(few).differences(answers["few"]) == []


def test_a_lost_host_costs_its_own_engine_only(
    fleet: Cluster, answers: Mapping[str, list[Said]]
) -> None:
    with Load(fleet.gateway_of, CROWD) as crowd:
        waits_for_scale(fleet, 2)
        _, lost = fleet.hosts.workers
        kept = [engine for engine in fleet.engines if engine.node != lost.address]
        lost.kill()
        wait_until(lambda: fleet.engines == kept, "the engine is known to be gone")
        wait_until(lambda: fleet.engines_have_settled(1), "Serve waits for no second engine")
        assert fleet.engines == kept
        fleet.hosts.start(lost)
        waits_for_scale(fleet, 2)
        wait_until(lambda: fleet.engines_have_settled(2), "the host has its engine back")
        assert set(kept) < set(fleet.engines)
    assert outcome(crowd).failures == []
    assert outcome(crowd).differences(answers["crowd"]) == []


def test_a_gateway_host_that_joins_gets_a_gateway(fleet: Cluster, all_hosts: Hosts) -> None:
    """Where there was one at the deployment, so that Serve may put two there."""
    first, second = all_hosts.edges
    wait_until(lambda: len(gateways(fleet)) == 1, "the gateway knows of itself")
    [before] = gateways(fleet)
    assert before.node == first.address
    grown = Cluster(all_hosts, all_hosts.folder)

    def both_are_there() -> bool:
        return is_ready(gateway_url(second)) and grown.has_settled("pomona", "Gateway", 2)

    all_hosts.start(second)
    wait_until(both_are_there, "the second host has a gateway")
    second.kill()
    # Serve puts its successor on the first host meanwhile, where it must not stay.
    wait_until(lambda: gateways(fleet) == [before], "the second gateway is known to be gone")
    all_hosts.start(second)
    wait_until(both_are_there, "the second host has its gateway back")
    assert before in gateways(grown)
    assert {gateway.node for gateway in gateways(grown)} == {first.address, second.address}
