"""Four hosts with an engine and a gateway each. One is also the head, and one the store's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster.balancers import CONFIGURATIONS, Balancer
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.cluster.double_roles import NUM_HOSTS
from tests.support.cluster.outcome import Answers, observe
from tests.support.cluster.scenarios import OF_DOUBLE_ROLES

pytestmark = pytest.mark.cluster

FIRST, *_ = CONFIGURATIONS


@pytest.fixture(scope="module")
def running(may_have_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("double-roles")
    with cluster(folder, num_workers=NUM_HOSTS, doubled=True) as started:
        yield started


@pytest.fixture(scope="module")
def answers(running: Cluster) -> Answers:
    return Answers(running)


@pytest.mark.parametrize("name", OF_DOUBLE_ROLES)
@pytest.mark.parametrize("balancer", [FIRST], indirect=True)
def test_no_client_notices(
    running: Cluster,
    balancer: Balancer,
    answers: Answers,
    name: str,
    record_property: Callable[[str, object], None],
) -> None:
    scenario = OF_DOUBLE_ROLES[name]
    before = answers.of_now(scenario.clients)
    outcome = observe(
        running, scenario.event(running), lambda number: balancer.url, scenario.clients
    )
    record_property("figures", outcome.figures)
    assert outcome.failures == []
    assert outcome.differences(before, answers.of_now(scenario.clients)) == []
    assert {one.name for one in outcome.alerts if one.pages} <= set(scenario.may_page)
