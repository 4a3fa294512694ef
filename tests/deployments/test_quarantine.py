"""Which requests are tried apart from others, and which one is refused in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from deployments.fleet.directory import Replica
from deployments.gateway.relay.quarantine import (
    MOST_TURNS,
    OFTEN,
    PAST_AFTER,
    WINDOW_S,
    Quarantine,
    Suspect,
)
from tests.support.clock import Clock
from tests.support.deployments.gateway_harness import nowhere

A, B, C, D = (nowhere(name) for name in "abcd")
FLEET = [A, B, C, D]


@dataclass
class Fleet:
    """Requests on replicas that a test lets fall."""

    clock: Clock = field(default_factory=Clock)
    on: dict[Suspect, tuple[Replica, ExitStack]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.quarantine = Quarantine(self.clock)

    def start(self, requests: Iterable[Suspect], replica: Replica) -> None:
        for request in requests:
            assert self.may_enter(request, replica)
            stack = ExitStack()
            stack.enter_context(self.quarantine.attempt(request, replica))
            self.on[request] = replica, stack

    def fall(self, replica: Replica) -> list[Suspect]:
        fallen = [request for request, (where, _) in self.on.items() if where is replica]
        for request in fallen:
            self.quarantine.lost(request, replica)
            self.end(request)
        return fallen

    def end(self, request: Suspect) -> None:
        self.on.pop(request)[1].close()

    def go_on(self, request: Suspect, num_tokens: int) -> None:
        replica, _ = self.on[request]
        self.quarantine.went_on(request, replica, request.progress + num_tokens)

    def may_enter(self, request: Suspect, replica: Replica) -> bool:
        return self.quarantine.able(request, [replica]) == [replica]

    def fall_together(self, num_requests: int, *, times: int) -> list[Suspect]:
        """So many requests, each time on the same replica, in outages of their own."""
        requests = [Suspect() for _ in range(num_requests)]
        for _ in range(times):
            self.start(requests, A)
            self.fall(A)
            self.clock.time += WINDOW_S
        return requests


def test_after_one_fall_nobody_waits() -> None:
    fleet = Fleet()
    requests = fleet.fall_together(50, times=1)
    assert not any(request.on_trial for request in requests)
    fleet.start(requests, B)


@pytest.mark.parametrize("apart_s", [0.1, 5.0])
def test_replicas_that_fall_within_a_window_count_as_one(apart_s: float) -> None:
    fleet = Fleet()
    requests = [Suspect() for _ in range(17)]
    for replica in (A, B):
        fleet.start(requests, replica)
        fleet.fall(replica)
        fleet.clock.time += apart_s
    fleet.start(requests, C)
    assert not any(request.on_trial for request in requests)


def test_the_window_begins_with_its_first_fall() -> None:
    fleet = Fleet()
    request = Suspect()
    for replica in (A, B):
        fleet.start([request], replica)
        fleet.fall(replica)
        fleet.clock.time += WINDOW_S
    assert request.on_trial


def test_a_replica_that_falls_again_is_another_fall() -> None:
    fleet = Fleet()
    request = Suspect()
    for _ in range(2):
        fleet.start([request], A)
        assert not request.on_trial
        fleet.fall(A)
    assert request.on_trial


def test_a_third_loss_in_a_row_is_enough_whatever_the_window() -> None:
    fleet = Fleet()
    request = Suspect()
    for replica in (A, B, C):
        assert not request.on_trial
        fleet.start([request], replica)
        fleet.fall(replica)
    assert request.on_trial


def test_all_who_lose_a_replica_are_part_of_one_fall() -> None:
    fleet = Fleet()
    first, second = requests = [Suspect(), Suspect()]
    fleet.start(requests, A)
    fleet.quarantine.lost(first, A)
    fleet.end(first)
    fleet.clock.time += WINDOW_S
    fleet.start([first], B)
    fleet.quarantine.lost(second, A)
    assert not any(request.on_trial for request in requests)


def test_who_gets_on_begins_anew() -> None:
    fleet = Fleet()
    request = Suspect(num_sequences=3)
    for _ in range(OFTEN):
        fleet.start([request], A)
        fleet.go_on(request, 3 * PAST_AFTER)
        fleet.fall(A)
        assert not request.on_trial
        fleet.clock.time += WINDOW_S
    fleet.start([request], A)
    fleet.go_on(request, 3 * PAST_AFTER - 1)
    fleet.fall(A)
    assert request.on_trial


def test_one_is_on_trial_at_a_time_and_nothing_else_is_sent_there() -> None:
    fleet = Fleet()
    first, second, third = fleet.fall_together(3, times=2)
    old, new = Suspect(), Suspect()
    fleet.start([old], B)
    fleet.start([first], B)
    assert not fleet.may_enter(second, B)
    assert not fleet.may_enter(new, B)
    assert fleet.quarantine.able(new, FLEET) == [A, C, D]
    fleet.start([second], C)
    fleet.go_on(first, PAST_AFTER - 1)
    assert not fleet.may_enter(third, B)
    fleet.go_on(first, 1)
    assert fleet.may_enter(new, B)
    fleet.start([third], B)
    # One that has ended is in nobody's way either.
    fleet.end(third)
    assert fleet.may_enter(new, B)


def test_of_many_several_are_tried_together_and_after_a_fall_fewer() -> None:
    fleet = Fleet()
    requests = fleet.fall_together(4 * MOST_TURNS, times=2)
    group = requests[:4]
    fleet.start(group, B)
    assert not fleet.may_enter(requests[4], B)
    fleet.fall(B)
    fleet.start(group[:2], C)
    assert not fleet.may_enter(group[2], C)
    assert not fleet.may_enter(requests[4], C)
    fleet.start(requests[4:8], D)
    fleet.fall(C)
    fleet.start(group[:1], C)
    assert not fleet.may_enter(group[1], C)


def test_who_was_the_only_one_on_trial_is_tried_alone_and_refused_after_the_second_time() -> None:
    fleet = Fleet()
    (request,) = fleet.fall_together(1, times=2)
    innocent, other = Suspect(), Suspect()
    fleet.start([innocent], B)
    fleet.start([request], B)
    fleet.fall(B)
    assert not innocent.on_trial
    fleet.start([innocent], C)
    fleet.start([other], D)
    assert not fleet.quarantine.able(request, [C, D])
    for replica in (A, B):
        assert not request.is_refused
        fleet.start([request], replica)
        assert not fleet.may_enter(innocent, replica)
        fleet.fall(replica)
    assert request.is_refused
    assert not any(one.is_refused for one in (innocent, other))


def test_who_must_be_alone_has_the_emptiest_replica_kept_free() -> None:
    fleet = Fleet()
    request, another = (fleet.fall_together(1, times=2)[0] for _ in range(2))
    for one in (request, another):
        fleet.start([one], A)
        fleet.start([Suspect()], B)
        fleet.fall(A)
        one.must_be_alone = True
    few, *many = [Suspect() for _ in range(4)]
    new = Suspect()
    fleet.start(many, B)
    fleet.start([few], C)
    with fleet.quarantine.request(request):
        assert not fleet.quarantine.able(request, [B, C])
        assert fleet.quarantine.able(new, [B, C]) == [B]
        # One at a time.
        assert not fleet.quarantine.able(another, [B, C])
        assert fleet.quarantine.able(new, [B, C]) == [B]
        fleet.end(few)
        assert not fleet.may_enter(another, C)
        # The one that was kept free may go, too.
        assert not fleet.quarantine.able(request, [B])
        assert not fleet.may_enter(new, B)
        assert fleet.may_enter(new, C)
    assert fleet.may_enter(new, B)


def test_one_that_kills_late_is_found_too() -> None:
    fleet = Fleet()
    killer, innocent = Suspect(), Suspect()
    num_kills = 0
    while not killer.is_refused:
        num_kills += 1
        replica = nowhere(f"replica-{num_kills}")
        for one in (killer, innocent):
            if fleet.may_enter(one, replica):
                fleet.start([one], replica)
                fleet.go_on(one, 50)
        fleet.fall(replica)
        for one in list(fleet.on):
            fleet.end(one)
        fleet.clock.time += WINDOW_S
    assert num_kills < 16
    assert not innocent.is_refused


async def test_whoever_waits_hears_of_every_change() -> None:
    fleet = Fleet()
    (first,) = fleet.fall_together(1, times=2)
    fleet.start([first], B)
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
