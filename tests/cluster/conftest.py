"""One cluster in namespaces, and what it says when nothing happens, for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster.balancers import Balancer, start_balancer
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.cluster.events import NUM_ENGINES
from tests.support.cluster.outcome import Answers
from tests.support.cluster.requirements import what_is_missing


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ci: scenarios that `.ci/run` includes")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                terminalreporter.write_line(
                    f"{report.nodeid}: {name}: {value}, {report.duration:.0f} s in all"
                )


@pytest.fixture(scope="session")
def may_have_hosts() -> None:
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
