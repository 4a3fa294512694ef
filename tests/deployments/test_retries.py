"""Back-off and circuit breakers, by a clock and a dice of the test's own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest

from deployments.fleet.directory import ReplicaDirectory
from deployments.gateway.relay.connections import ReplicaConnections
from deployments.gateway.relay.parts import (
    LEAST_PATIENCE_S,
    STARTS,
    RelayParts,
)
from deployments.gateway.relay.retries import Backoff, Retries
from deployments.gateway.replicas.suspect import Suspect
from deployments.gateway.replicas.table import ReplicaTable, open_retry_after_s
from deployments.gateway.replicas.work import Work
from deployments.gateway.routing import LeastOutstandingTokens
from deployments.observe.metrics import GatewayMetrics
from deployments.settings import LONGEST_PATIENCE_S, GatewaySettings
from tests.support.clock import Clock
from tests.support.deployments.gateway_harness import nowhere
from tests.support.deployments.routing_cases import table_of

WORK = Work("demo", 1)


def test_pauses_double_up_to_a_limit_and_vary_below_it() -> None:
    longest = Backoff(first_s=0.1, longest_s=1.0, random=lambda: 1.0)
    delays = [longest.delay_s(failures) for failures in range(8)]
    assert delays == pytest.approx([0, 0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert longest.delay_s(10**6) == 1.0
    half = Backoff(first_s=0.1, longest_s=1.0, random=lambda: 0.5)
    assert half.delay_s(3) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("setting", "starts_s", "patience_s"),
    [
        (None, [], LEAST_PATIENCE_S),
        (None, [2.0, 3.0], LEAST_PATIENCE_S),
        (None, [24.0, 40.0], STARTS * 40.0),
        (None, [3600.0], LONGEST_PATIENCE_S),
        (5.0, [40.0], 5.0),
        (0.0, [40.0], 0.0),
    ],
)
def test_a_request_outwaits_the_start_of_an_engine(
    setting: float | None, starts_s: list[float], patience_s: float
) -> None:
    directory = ReplicaDirectory([replace(nowhere(str(one)), start_s=one) for one in starts_s])
    parts = RelayParts(
        settings=GatewaySettings(resume_timeout_s=setting),
        replicas=ReplicaTable(directory, load_half_life_s=10.0),
        router=LeastOutstandingTokens(),
        metrics=GatewayMetrics(replica="g", node="n"),
        connections=ReplicaConnections(),
    )
    assert parts.patience_s("demo") == patience_s
    # All of them fall at once.
    directory.replace([])
    assert parts.patience_s("demo") == patience_s <= parts.settings.longest_patience_s


def retries(clock: Clock, max_refusals: int = 3) -> Retries:
    backoff = Backoff(random=lambda: 1.0)
    return Retries(max_refusals=max_refusals, patience_s=10.0, backoff=backoff, now=clock)


def test_refusals_and_time_run_out() -> None:
    clock = Clock()
    trying = retries(clock, max_refusals=2)
    assert not trying.time_exhausted
    trying.refused("a")
    assert (trying.tried, trying.refusals_exhausted, trying.delay_s()) == ({"a"}, False, 0.0)
    clock.time += 6
    trying.failed("b", progress=0)
    assert not trying.refusals_exhausted
    trying.refused("c")
    assert (trying.tried, trying.refusals_exhausted) == ({"a", "b", "c"}, True)
    assert trying.delay_s() == pytest.approx(0.2)
    trying.nobody_left()
    assert (trying.tried, trying.delay_s()) == (set(), pytest.approx(0.4))
    clock.time += 4
    assert trying.time_exhausted
    assert not trying.was_lost


def test_progress_starts_time_pauses_and_turns_anew() -> None:
    clock = Clock()
    trying = retries(clock)
    for name in "abc":
        trying.failed(name, progress=0)
    clock.time += 9
    trying.failed("d", progress=1)
    clock.time += 9
    assert (trying.tried, trying.delay_s(), trying.time_exhausted) == ({"d"}, 0.0, False)


def test_a_loss_starts_time_anew_since_somebody_had_room() -> None:
    clock = Clock()
    trying = retries(clock)
    trying.failed("a", progress=0)
    clock.time += 9
    trying.lost("b", progress=0)
    clock.time += 9
    assert (trying.tried, trying.was_lost, trying.time_exhausted) == ({"a", "b"}, True, False)


def test_time_begins_where_there_is_nobody_to_ask() -> None:
    clock = Clock()
    trying = retries(clock)
    trying.nobody_left()
    clock.time += 10
    assert trying.time_exhausted


def test_whoever_is_in_line_has_time() -> None:
    clock = Clock()
    trying = retries(clock)
    trying.lost("a", progress=1)
    clock.time += 9
    trying.in_line()
    clock.time += 9
    assert not trying.time_exhausted
    clock.time += 1
    assert trying.time_exhausted


def test_a_breaker_opens_rests_probes_and_rests_for_longer() -> None:
    clock = Clock()
    table, (one,) = table_of("a", clock=clock)
    one.breaker.failed()
    assert one.breaker.admits
    assert one.breaker.is_resting
    for rest in (1.0, 2.0, 4.0, 8.0, 16.0, 16.0):
        one.breaker.failed()
        assert not one.breaker.admits
        # What was on its way fails too, and changes nothing.
        one.breaker.failed()
        assert open_retry_after_s([one]) == rest
        clock.time += rest - 0.01
        assert not one.breaker.admits
        clock.time += 0.01
        with table.attempt(WORK, Suspect(), one):
            assert not one.breaker.admits
        assert one.breaker.admits
    one.answered()
    one.breaker.failed()
    assert one.breaker.admits


def test_what_is_no_failure_has_others_asked_first_and_opens_no_breaker() -> None:
    clock = Clock()
    _, (one,) = table_of("a", clock=clock)
    for rest in (1, 2):
        for _ in range(3):
            one.breaker.rest()
        assert one.breaker.is_resting
        assert one.breaker.admits
        clock.time += rest
        assert not one.breaker.is_resting


def test_a_probe_that_fails_or_succeeds() -> None:
    clock = Clock()
    table, (one, other) = table_of("a", "b", clock=clock)
    for _ in range(2):
        one.breaker.failed()
    clock.time += 1
    with table.attempt(WORK, Suspect(), one):
        one.breaker.failed()
    assert open_retry_after_s([one, other]) == 2
    clock.time += 2
    with table.attempt(WORK, Suspect(), one):
        one.answered()
        assert one.breaker.admits
    assert one.breaker.admits


def test_requests_of_a_closed_breaker_are_no_probes() -> None:
    clock = Clock()
    table, (one,) = table_of("a", clock=clock)
    one.breaker.failed()
    with table.attempt(WORK, Suspect(), one):
        assert one.breaker.admits
        one.breaker.failed()
        clock.time += 1
        with table.attempt(WORK, Suspect(), one):
            pass
        # That one was the probe, and nothing is known.
        assert one.breaker.admits
        probe = ExitStack()
        probe.enter_context(table.attempt(WORK, Suspect(), one))
    assert not one.breaker.admits
    probe.close()
    assert one.breaker.admits


def test_one_breaker_says_nothing_about_another() -> None:
    _, (one, other) = table_of("a", "b")
    for _ in range(2):
        one.breaker.failed()
    assert not one.breaker.admits
    assert other.breaker.admits
    assert open_retry_after_s([]) == 1
