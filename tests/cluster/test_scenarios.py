"""200 streams, greedy and sampled, through each load balancer, while the cluster loses parts."""

from __future__ import annotations

import pytest

from tests.support.cluster.balancers import Balancer
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.outcome import Answers, observe
from tests.support.cluster.requests import Request
from tests.support.cluster.scenarios import SCENARIOS

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_client_notices(
    running: Cluster,
    balancer: Balancer,
    asked: list[Request],
    answers: Answers,
    name: str,
) -> None:
    before, switches = answers.of_now(), balancer.switches()
    outcome = observe(SCENARIOS[name](running), lambda number: balancer.url, asked)
    assert outcome.failures == []
    assert outcome.differences(before, answers.of_now()) == []
    if name == "rolling update":
        # Each gateway was away for a while, and nobody was sent there meanwhile.
        assert len(balancer.switches() - switches) == len(running.hosts.edges)
