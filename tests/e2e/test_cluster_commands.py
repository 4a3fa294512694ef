"""What the runbook says that a cluster's units run, on a cluster of one host."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from tests.support.e2e.commanded_cluster import (
    CommandedCluster,
    commanded_cluster,
    is_ready,
    wait_for,
)
from tests.support.e2e.long_stream import KEY, streams_throughout
from tests.support.e2e.serve_process import RAY_FOLDER, scrape_url

WRONG = "a-key-that-is-none"


pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[CommandedCluster]:
    with commanded_cluster(KEY) as running:
        yield running


def test_it_answers_who_has_a_key(cluster: CommandedCluster) -> None:
    answer = OpenAI(base_url=f"{cluster.url}/v1", api_key=KEY).chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "What is Pomona?"}], temperature=0
    )
    assert "Macs" in str(answer.choices[0].message.content)
    cluster.serve.secrets.add(WRONG)
    with pytest.raises(openai.AuthenticationError):
        OpenAI(base_url=f"{cluster.url}/v1", api_key=WRONG, max_retries=0).models.list()


def test_it_says_how_it_is(cluster: CommandedCluster) -> None:
    told = cluster.look()
    assert "mlx" in told
    assert told.count("status: RUNNING") == 2


def test_no_other_user_gets_at_its_token_and_sessions(cluster: CommandedCluster) -> None:
    home = cluster.serve.home
    closed = (home / RAY_FOLDER, home / ".ray", home / ".ray" / "auth_token")
    assert [path.stat().st_mode & 0o777 for path in closed] == [0o700, 0o700, 0o600]


def test_a_gateways_successor_takes_its_port(cluster: CommandedCluster) -> None:
    """The engine goes on, and so does what was asked before."""
    engine, gateway = (cluster.replicas(name) for name in ("engine", "gateway"))
    with streams_throughout(cluster.url):
        wait_for(cluster.is_running_a_request)
        cluster.gateways["gateway"]["max_attempts"] = 4
        cluster.deploy()
        wait_for(lambda: not cluster.replicas("gateway") <= gateway)
        assert cluster.replicas("engine") == engine


def test_an_engine_first_ends_what_it_was_asked(cluster: CommandedCluster) -> None:
    """The gateway stays."""
    engine, gateway = (cluster.replicas(name) for name in ("engine", "gateway"))
    old = scrape_url(cluster.serve, "engine").removesuffix("/metrics")
    with streams_throughout(cluster.url):
        wait_for(cluster.is_running_a_request)
        cluster.engines["engine"]["max_queued_requests"] = 100
        cluster.deploy()
        wait_for(lambda: not is_ready(old))
    wait_for(lambda: is_ready(cluster.url) and not cluster.replicas("engine") & engine)
    assert cluster.replicas("gateway") == gateway


def test_a_host_that_joins_gets_an_engine(cluster: CommandedCluster) -> None:
    """Without another deployment."""
    cluster.join()
    wait_for(lambda: len(cluster.replicas("engine")) == 2)
