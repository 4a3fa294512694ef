"""Which requests are tried apart from others, and which one is refused in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from deployments.gateway.replicas.quarantine import MOST_TURNS, WINDOW_S
from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.suspect import OFTEN, PAST_AFTER, Suspect
from deployments.gateway.replicas.work import Work
from tests.support.clock import Clock
from tests.support.deployments.routing_cases import replica, table_of


@dataclass
class Fleet:
    """Requests on replicas that a test lets fall."""

    clock: Clock = field(default_factory=Clock)
    on: dict[Suspect, tuple[ReplicaState, ExitStack]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table, self.replicas = table_of(*"abcd", clock=self.clock)
        self.quarantine = self.table.quarantine

    def start(self, requests: Iterable[Suspect], state: ReplicaState) -> None:
        for request in requests:
            assert self.may_enter(request, state)
            stack = ExitStack()
            work = Work("demo", 1, num_sequences=request.num_sequences)
            stack.enter_context(self.table.attempt(work, request, state))
            self.on[request] = state, stack
        self.table.check_integrity()

    def fall(self, state: ReplicaState) -> list[Suspect]:
        fallen = [request for request, (where, _) in self.on.items() if where is state]
        for request in fallen:
            self.quarantine.lost(request, state)
            self.end(request)
        return fallen

    def end(self, request: Suspect) -> None:
        self.on.pop(request)[1].close()
        self.table.check_integrity()

    def go_on(self, request: Suspect, num_tokens: int) -> None:
        state, _ = self.on[request]
        self.quarantine.went_on(request, state, request.progress + num_tokens)
        self.table.check_integrity()

    def may_enter(self, request: Suspect, state: ReplicaState) -> bool:
        return self.quarantine.able(request, [state]) == [state]

    def fall_together(self, num_requests: int, *, times: int) -> list[Suspect]:
        """So many requests, each time on the same replica, in outages of their own."""
        requests = [Suspect() for _ in range(num_requests)]
        for _ in range(times):
            self.start(requests, self.replicas[0])
            self.fall(self.replicas[0])
            self.clock.time += WINDOW_S
        return requests


def test_after_one_fall_nobody_waits() -> None:
    fleet = Fleet()
    _, b, _, _ = fleet.replicas
    requests = fleet.fall_together(50, times=1)
    assert not any(request.on_trial for request in requests)
    fleet.start(requests, b)


@pytest.mark.parametrize("apart_s", [0.1, 5.0])
def test_replicas_that_fall_within_a_window_count_as_one(apart_s: float) -> None:
    fleet = Fleet()
    a, b, c, _ = fleet.replicas
    requests = [Suspect() for _ in range(17)]
    for state in (a, b):
        fleet.start(requests, state)
        fleet.fall(state)
        fleet.clock.time += apart_s
    fleet.start(requests, c)
    assert not any(request.on_trial for request in requests)


def test_the_window_begins_with_its_first_fall() -> None:
    fleet = Fleet()
    a, b, _, _ = fleet.replicas
    request = Suspect()
    for state in (a, b):
        fleet.start([request], state)
        fleet.fall(state)
        fleet.clock.time += WINDOW_S
    assert request.on_trial


def test_a_replica_that_falls_again_is_another_fall() -> None:
    fleet = Fleet()
    a, _, _, _ = fleet.replicas
    request = Suspect()
    for _ in range(2):
        fleet.start([request], a)
        assert not request.on_trial
        fleet.fall(a)
    assert request.on_trial


def test_a_third_loss_in_a_row_is_enough_whatever_the_window() -> None:
    fleet = Fleet()
    a, b, c, _ = fleet.replicas
    request = Suspect()
    for state in (a, b, c):
        assert not request.on_trial
        fleet.start([request], state)
        fleet.fall(state)
    assert request.on_trial


def test_all_who_lose_a_replica_are_part_of_one_fall() -> None:
    fleet = Fleet()
    a, b, _, _ = fleet.replicas
    first, second = requests = [Suspect(), Suspect()]
    fleet.start(requests, a)
    fleet.quarantine.lost(first, a)
    fleet.end(first)
    fleet.clock.time += WINDOW_S
    fleet.start([first], b)
    fleet.quarantine.lost(second, a)
    assert not any(request.on_trial for request in requests)


def test_who_gets_on_begins_anew() -> None:
    fleet = Fleet()
    a, _, _, _ = fleet.replicas
    request = Suspect(num_sequences=3)
    for _ in range(OFTEN):
        fleet.start([request], a)
        fleet.go_on(request, 3 * PAST_AFTER)
        fleet.fall(a)
        assert not request.on_trial
        fleet.clock.time += WINDOW_S
    fleet.start([request], a)
    fleet.go_on(request, 3 * PAST_AFTER - 1)
    fleet.fall(a)
    assert request.on_trial


def test_one_is_on_trial_at_a_time_and_nothing_else_is_sent_there() -> None:
    fleet = Fleet()
    a, b, c, d = fleet.replicas
    first, second, third = fleet.fall_together(3, times=2)
    old, new = Suspect(), Suspect()
    fleet.start([old], b)
    fleet.start([first], b)
    assert not fleet.may_enter(second, b)
    assert not fleet.may_enter(new, b)
    assert fleet.quarantine.able(new, fleet.replicas) == [a, c, d]
    fleet.start([second], c)
    fleet.go_on(first, PAST_AFTER - 1)
    assert not fleet.may_enter(third, b)
    fleet.go_on(first, 1)
    assert fleet.may_enter(new, b)
    fleet.start([third], b)
    # One that has ended is in nobody's way either.
    fleet.end(third)
    assert fleet.may_enter(new, b)


def test_of_many_several_are_tried_together_and_after_a_fall_fewer() -> None:
    fleet = Fleet()
    _, b, c, d = fleet.replicas
    requests = fleet.fall_together(4 * MOST_TURNS, times=2)
    group = requests[:4]
    fleet.start(group, b)
    assert not fleet.may_enter(requests[4], b)
    fleet.fall(b)
    fleet.start(group[:2], c)
    assert not fleet.may_enter(group[2], c)
    assert not fleet.may_enter(requests[4], c)
    fleet.start(requests[4:8], d)
    fleet.fall(c)
    fleet.start(group[:1], c)
    assert not fleet.may_enter(group[1], c)


def test_who_was_the_only_one_on_trial_is_tried_alone_and_refused_after_the_second_time() -> None:
    fleet = Fleet()
    a, b, c, d = fleet.replicas
    (request,) = fleet.fall_together(1, times=2)
    innocent, other = Suspect(), Suspect()
    fleet.start([innocent], b)
    fleet.start([request], b)
    fleet.fall(b)
    assert not innocent.on_trial
    fleet.start([innocent], c)
    fleet.start([other], d)
    assert not fleet.quarantine.able(request, [c, d])
    for state in (a, b):
        assert not request.is_refused
        fleet.start([request], state)
        assert not fleet.may_enter(innocent, state)
        fleet.fall(state)
    assert request.is_refused
    assert not any(one.is_refused for one in (innocent, other))


def test_who_must_be_alone_has_the_emptiest_replica_kept_free() -> None:
    fleet = Fleet()
    a, b, c, _ = fleet.replicas
    request, another = (fleet.fall_together(1, times=2)[0] for _ in range(2))
    for one in (request, another):
        fleet.start([one], a)
        fleet.start([Suspect()], b)
        fleet.fall(a)
        one.must_be_alone = True
    few, *many = [Suspect() for _ in range(4)]
    new = Suspect()
    fleet.start(many, b)
    fleet.start([few], c)
    with fleet.quarantine.request(request):
        assert not fleet.quarantine.able(request, [b, c])
        assert fleet.quarantine.able(new, [b, c]) == [b]
        # One at a time.
        assert not fleet.quarantine.able(another, [b, c])
        assert fleet.quarantine.able(new, [b, c]) == [b]
        fleet.end(few)
        assert not fleet.may_enter(another, c)
        # The one that was kept free may go, too.
        assert not fleet.quarantine.able(request, [b])
        assert not fleet.may_enter(new, b)
        assert fleet.may_enter(new, c)
    assert fleet.may_enter(new, b)


def test_one_that_kills_late_is_found_too() -> None:
    fleet = Fleet()
    killer, innocent = Suspect(), Suspect()
    num_kills = 0
    while not killer.is_refused:
        num_kills += 1
        fleet.table.directory.replace([replica(f"replica-{num_kills}")])
        (state,) = fleet.table.serving("demo")
        for one in (killer, innocent):
            if fleet.may_enter(one, state):
                fleet.start([one], state)
                fleet.go_on(one, 50)
        fleet.fall(state)
        for one in list(fleet.on):
            fleet.end(one)
        fleet.clock.time += WINDOW_S
    assert num_kills < 16
    assert not innocent.is_refused


async def test_whoever_waits_hears_of_every_change() -> None:
    fleet = Fleet()
    _, b, _, _ = fleet.replicas
    (first,) = fleet.fall_together(1, times=2)
    fleet.start([first], b)
    order: list[int] = []

    async def wait(number: int) -> None:
        await fleet.quarantine.wait_for_change(10)
        order.append(number)

    waiting = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    fleet.go_on(first, PAST_AFTER)
    await asyncio.wait(waiting)
    assert order == [1, 2]
    await fleet.quarantine.wait_for_change(0.001)
