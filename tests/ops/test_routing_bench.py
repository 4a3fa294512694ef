from __future__ import annotations

from dataclasses import replace

import pytest

from deployments.gateway.replicas.capacity import weights
from deployments.gateway.routing import LeastOutstandingTokens
from ops.bench.routing.__main__ import (
    BUSY,
    CACHE_TOKENS,
    EQUALS,
    HOT,
    MIXED,
    SHARED,
    Contender,
    Stopwatch,
    affinity,
    report,
    rows,
    simulate,
)
from ops.bench.routing.fleet import MODEL, Fleet, Outcome, Request, make_hosts, percentile
from ops.bench.routing.shared_prefixes import SharedPrefixes

pytestmark = pytest.mark.serve

TINY = SharedPrefixes(num_prefixes=3, repeats=2, prefix_tokens=64, output_tokens=(2, 4))


def test_a_workload_is_what_it_says() -> None:
    requests = SHARED.requests()
    assert len(requests) == 400
    beginnings = [request.prompt[:512] for request in requests]
    assert len(set(beginnings)) == 40
    assert all(beginnings.count(one) == 10 for one in set(beginnings))
    assert {request.gateway for request in requests} == {0, 1}
    assert requests == SHARED.requests()
    assert requests[-1].at == pytest.approx(400 / SHARED.requests_per_second, rel=0.1)
    hot = [request.prompt[:512] for request in HOT.requests()]
    assert max(map(hot.count, set(hot))) / len(hot) == pytest.approx(0.8, abs=0.05)


def test_one_replica_alone_takes_the_time_that_its_steps_take() -> None:
    prompt = tuple(range(100))
    fleet = Fleet(make_hosts([2.0], cache_tokens=1024), LeastOutstandingTokens, 1)
    outcome = fleet.run([Request(0.5, 0, prompt, 3), Request(9.0, 0, prompt, 1)])
    first = (0.010 + 0.0005 * 100) / 2
    # All full blocks but the one with the last token are found again.
    second = (0.010 + 0.0005 * 4) / 2
    assert outcome.ttft_s == pytest.approx([second, first])
    assert outcome.e2e_s == pytest.approx([second, first + 2 * (0.010 + 0.0005) / 2])
    assert outcome.hit_tokens == 96
    assert outcome.routed_tokens == (103 + 101,)


def test_imbalance_counts_speed() -> None:
    outcome = Outcome(0, (100, 300), (1.0, 4.0), (0.0, 0.0), (), (), 0)
    assert outcome.imbalance == pytest.approx(100 / (400 / 5))


@pytest.mark.parametrize(("seed", "rate"), [(0, 8.0), (1, 16.0), (2, 30.0)])
def test_shared_prefixes_are_computed_once_and_the_load_stays_even(seed: int, rate: float) -> None:
    workload = replace(SHARED, requests_per_second=rate, seed=seed)
    outcome = simulate(workload, EQUALS, affinity())
    assert outcome.hit_tokens >= 0.9 * workload.ideal_hit_tokens
    assert outcome.imbalance <= 1.3


def test_least_outstanding_computes_most_prefixes_again() -> None:
    outcome = simulate(SHARED, EQUALS, LeastOutstandingTokens)
    assert outcome.hit_tokens < 0.5 * SHARED.ideal_hit_tokens
    assert outcome.imbalance < 1.1


def test_a_hot_prefix_spreads_before_it_queues() -> None:
    bounded, unbounded = (simulate(HOT, EQUALS, affinity(load_bound=bound)) for bound in (1.4, 1e9))
    assert bounded.imbalance <= 1.45
    assert unbounded.imbalance > 3
    assert percentile(bounded.ttft_s, 0.99) < 0.1 * percentile(unbounded.ttft_s, 0.99)
    assert bounded.hit_tokens > 0.95 * unbounded.hit_tokens


def test_unlike_replicas_get_their_shares() -> None:
    hosts = make_hosts(MIXED, cache_tokens=CACHE_TOKENS)
    fleet = Fleet(hosts, affinity(), BUSY.num_gateways)
    weighted = fleet.run(BUSY.requests())
    unweighted = simulate(BUSY, MIXED, affinity(weigh_capacity=False))
    assert weighted.imbalance <= 1.3
    assert unweighted.imbalance > 1.8
    assert percentile(weighted.ttft_s, 0.5) < 0.1 * percentile(unweighted.ttft_s, 0.5)

    # Every gateway has learned the weights by itself.
    for table in fleet.tables:
        measured = weights([state.capacity for state in table.serving(MODEL)])
        for weight, speed in zip(measured, MIXED, strict=True):
            # A step of the scale more or less.
            assert 0.7 <= weight / speed <= 1.42


def test_the_table_has_a_row_for_each_contender(monkeypatch: pytest.MonkeyPatch) -> None:
    contenders = [Contender("one", affinity()), Contender("other", LeastOutstandingTokens)]
    table = rows(TINY, EQUALS, contenders)
    assert [row[0] for row in table] == ["one", "other"]
    monkeypatch.setattr(
        "ops.bench.routing.__main__.SCENARIOS", (("Title", TINY, EQUALS, contenders),)
    )
    assert report().startswith("Title\n\n| policy | hit tokens |")


def test_a_stopwatch_counts_each_decision() -> None:
    stopwatch = Stopwatch()
    workload = replace(TINY, num_gateways=1)
    simulate(workload, EQUALS, affinity(), stopwatch)
    assert len(stopwatch._seconds) == 6
    assert 0 < stopwatch.percentile(0.5) <= stopwatch.percentile(0.99)
