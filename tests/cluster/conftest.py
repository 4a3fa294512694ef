"""One cluster in namespaces, and what it says when nothing happens, for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.cluster.balancers import Balancer, start_balancer
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.cluster.events import NUM_ENGINES
from tests.support.cluster.outcome import Answers
from tests.support.cluster.requirements import what_is_missing


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
def answers(running: Cluster) -> Answers:
    return Answers(running)


@pytest.fixture(scope="module")
def balancer(request: pytest.FixtureRequest, running: Cluster) -> Balancer:
    return start_balancer(running.hosts, request.param)
