"""Clients, streaming or not, greedy and sampled, while the cluster loses parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.cluster import losses
from tests.support.cluster.balancers import CONFIGURATIONS, Balancer
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.outcome import Answers, observe
from tests.support.cluster.requests import CHAT, MESSAGES, RESPONSES
from tests.support.cluster.scenarios import RESUMABLE, SCENARIOS

pytestmark = pytest.mark.cluster

TWO_HOSTS = "two engines' hosts killed"
API_PATHS = (CHAT, RESPONSES, MESSAGES)
FIRST, *_ = CONFIGURATIONS
IN_CI = ("an engine's host killed", "the head cut off for 20 s", "rolling update")
RUNS = [
    pytest.param(
        balancer,
        name,
        marks=[pytest.mark.ci] if balancer == FIRST and name in IN_CI else [],
    )
    for balancer in CONFIGURATIONS
    for name, scenario in SCENARIOS.items()
    if scenario.behind_each_balancer or balancer == FIRST
]


@pytest.mark.parametrize(("balancer", "name"), RUNS, indirect=["balancer"])
def test_no_client_notices(
    running: Cluster,
    balancer: Balancer,
    answers: Answers,
    name: str,
    record_property: Callable[[str, object], None],
) -> None:
    scenario = SCENARIOS[name]
    before, switches = answers.of_now(scenario.clients), balancer.switches()
    outcome = observe(
        running, scenario.event(running), lambda number: balancer.url, scenario.clients
    )
    record_property("figures", outcome.figures)
    assert outcome.failures == []
    assert outcome.differences(before, answers.of_now(scenario.clients)) == []
    if name == TWO_HOSTS:
        met = {f"{path} {part}" for path in API_PATHS for part in ("json", "call", "thought")}
        assert met <= outcome.parts_met.keys()
    if name == "rolling update":
        # Each gateway was away for a while, and nobody was sent there meanwhile.
        assert len(balancer.switches() - switches) == len(running.hosts.edges)


@pytest.mark.ci
@pytest.mark.parametrize("balancer", [FIRST], indirect=True)
def test_clients_cut_from_their_gateway_get_the_rest_from_another_one(
    running: Cluster,
    balancer: Balancer,
    answers: Answers,
    record_property: Callable[[str, object], None],
) -> None:
    before = answers.of_now(RESUMABLE)
    event = losses.gateway_host_killed(running)
    outcome = observe(running, event, lambda number: balancer.url, RESUMABLE)
    record_property("figures", outcome.figures)
    assert outcome.failures == []
    assert outcome.differences(before) == []
    cut = [stream for stream in outcome.streams if stream.num_cuts]
    assert len(cut) >= len(RESUMABLE.requests) // len(running.hosts.edges) - 1
