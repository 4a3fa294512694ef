"""One cluster in namespaces, and what it says when nothing happens, for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.cluster.balancers import CONFIGURATIONS, Balancer, start_balancer
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.cluster.outcome import Answers
from tests.support.cluster.requests import Request, requests
from tests.support.cluster.requirements import what_is_missing
from tests.support.cluster.scenarios import NUM_ENGINES, NUM_STREAMS


@pytest.fixture(scope="session")
def may_have_hosts() -> None:
    if "CI" in os.environ:
        pytest.skip("CI has neither the time nor the rights.")
    if missing := what_is_missing():
        pytest.skip(missing)


@pytest.fixture(scope="session")
def running(may_have_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), num_workers=NUM_ENGINES) as started:
        yield started


@pytest.fixture(scope="session")
def asked() -> list[Request]:
    return requests(NUM_STREAMS)


@pytest.fixture(scope="session")
def answers(running: Cluster, asked: list[Request]) -> Answers:
    return Answers(running, asked)


@pytest.fixture(scope="module", params=list(CONFIGURATIONS))
def balancer(request: pytest.FixtureRequest, running: Cluster) -> Balancer:
    return start_balancer(running.hosts, request.param)
