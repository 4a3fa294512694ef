"""Places in the batch are shared between tenants, and between requests within them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.engine.schedule.sequence import Sequence, Status
from tests.support.backend_metal.scheduler_harness import Harness, output
from tests.support.backend_metal.stub_runner import expected_tokens
from tests.support.fuzzing import fuzz

LONG = 1000


def crowd(
    harness: Harness, count: int, *, tenant: str = "", group: str = "", **fields: float
) -> list[Sequence]:
    weight = fields.get("weight", 1.0)
    return [
        harness.add([7], max_tokens=LONG, tenant=tenant, group=group, weight=weight)
        for _ in range(count)
    ]


def running(harness: Harness) -> Counter[str]:
    return Counter(sequence.tenant for sequence in harness.scheduler.running)


def made(**settings: int) -> Harness:
    return Harness(**{"num_blocks": 4096, "max_num_batched_tokens": 64, **settings})


@pytest.mark.parametrize("tenant", ["greedy", "modest"])
def test_who_has_every_place_gives_some_back(tenant: str) -> None:
    """Of another tenant's requests, and of the same one's."""
    harness = made(max_num_seqs=32)
    greedy = crowd(harness, 32, tenant="greedy", group="two prompts x n 16")
    harness.step()
    assert len(harness.scheduler.running) == 32
    streams = [
        harness.add([number, 1], max_tokens=20, tenant=tenant, group=f"stream {number}")
        for number in range(8)
    ]
    for _ in range(20):
        step = harness.step()
        assert {item.sequence for item in step.scheduled} >= set(streams)
    assert all(stream.status is Status.FINISHED for stream in streams)
    for _ in streams:
        harness.step()
    assert harness.scheduler.running == greedy
    assert harness.scheduler.num_preemptions == 8


def test_without_a_crowd_of_one_the_first_to_come_run_first() -> None:
    harness = made(max_num_seqs=8)
    added = [harness.add([number], max_tokens=3 + number) for number in range(30)]
    started: list[Sequence] = []
    while harness.scheduler.has_work:
        for item in harness.step().scheduled:
            if item.sequence not in started:
                started.append(item.sequence)
    assert started == added
    assert harness.scheduler.num_preemptions == 0


def test_a_tenant_with_twice_the_weight_gets_twice_the_places() -> None:
    harness = made(max_num_seqs=12)
    crowd(harness, 20, tenant="one")
    harness.step()
    crowd(harness, 20, tenant="two", weight=2.0)
    crowd(harness, 1, tenant="few", weight=9.0)
    harness.step()
    assert running(harness) == {"one": 4, "two": 7, "few": 1}


def test_a_tenant_of_little_weight_has_one_place() -> None:
    harness = made(max_num_seqs=4)
    crowd(harness, 9, tenant="heavy", weight=1000.0)
    harness.step()
    crowd(harness, 9, tenant="light", weight=0.001)
    harness.step()
    assert running(harness) == {"heavy": 3, "light": 1}


def test_sharing_settles_at_once() -> None:
    harness = made(max_num_seqs=7)
    for name, weight in (("a", 0.1), ("b", 0.3), ("c", 0.7)):
        crowd(harness, 9, tenant=name, weight=weight)
        harness.step()
    before = harness.scheduler.num_preemptions
    for _ in range(9):
        harness.step()
    assert harness.scheduler.num_preemptions == before


def test_what_waited_longest_in_a_tenant_goes_on_first() -> None:
    harness = made(max_num_seqs=2)
    first, second, third = (harness.add([number], max_tokens=9) for number in range(3))
    harness.step()
    harness.scheduler.preempt_all()
    harness.step()
    assert harness.scheduler.running == [first, second]
    assert third.status is Status.WAITING


def test_nobody_gives_way_to_a_request_that_ranks_behind() -> None:
    harness = made(max_num_seqs=4)
    for _ in range(4):
        harness.add([1], max_tokens=LONG, priority=0, tenant="urgent")
    harness.step()
    later = harness.add([2], max_tokens=LONG, priority=1, tenant="other")
    harness.step()
    assert later.status is Status.WAITING
    urgent = harness.add([3], max_tokens=LONG, priority=0, tenant="other")
    harness.step()
    assert urgent.status is Status.RUNNING
    assert running(harness) == {"urgent": 3, "other": 1}


def test_who_has_most_makes_room_when_blocks_run_out() -> None:
    harness = Harness(num_blocks=12, max_num_seqs=8, max_num_batched_tokens=64)
    many = [harness.add([number] * 15, max_tokens=30, tenant="many") for number in range(4)]
    harness.step()
    late = harness.add([9] * 15, max_tokens=30, tenant="few")
    while late.status is not Status.FINISHED:
        harness.step()
        assert late.status is not Status.WAITING
    assert harness.scheduler.num_preemptions > 0
    harness.run()
    for number, sequence in enumerate(many):
        assert output(sequence) == expected_tokens([number] * 15, 30, 50)


def test_nobody_passes_a_prompt_that_waits_for_blocks() -> None:
    harness = Harness(num_blocks=20, max_num_seqs=8, max_num_batched_tokens=64)
    first = harness.add([1] * 60, max_tokens=40, tenant="a")
    harness.step()
    long = harness.add([2] * 110, tenant="b")
    short = harness.add([3] * 5, tenant="c")
    while first.status is Status.RUNNING:
        assert (long.status, short.status) == (Status.WAITING, Status.WAITING)
        harness.step()
    harness.step()
    assert harness.scheduler.running == [long, short]


Demand = tuple[float, tuple[int, ...]]
"""A tenant's weight, and how many sequences each of its requests has."""

demands = st.lists(
    st.tuples(
        st.sampled_from([0.1, 0.3, 0.5, 1.0, 2.0, 3.0]),
        st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=4,
)


def most_even(places: int, wanted: list[tuple[float, int]]) -> list[float]:
    """Weighted max-min, at a glance: the levels at which the places are given, of all at which they
    could be (a sequence starts where ``n`` of its tenant run, at ``n / weight``), are the least."""
    return sorted(n / weight for weight, count in wanted for n in range(count))[:places]


@fuzz(150)
@given(
    tenants=demands,
    max_num_seqs=st.integers(1, 12),
    order=st.randoms(use_true_random=False),
    steps=st.integers(0, 2),
)
def test_a_crowd_shares_as_evenly_as_places_allow(
    tenants: list[Demand], max_num_seqs: int, order: object, steps: int
) -> None:
    harness = made(max_num_seqs=max_num_seqs)
    arrivals = [
        (f"tenant {i}", weight, f"request {j}")
        for i, (weight, requests) in enumerate(tenants)
        for j, count in enumerate(requests)
        for _ in range(count)
    ]
    order.shuffle(arrivals)  # type: ignore[attr-defined]
    for tenant, weight, group in arrivals:
        crowd(harness, 1, tenant=tenant, group=group, weight=weight)
        for _ in range(steps):
            harness.step()
    harness.step()
    counts = running(harness)
    wanted = [(weight, sum(requests)) for weight, requests in tenants]
    got = [(weight, counts[f"tenant {i}"]) for i, (weight, _) in enumerate(tenants)]
    assert most_even(len(harness.scheduler.running), got) == most_even(max_num_seqs, wanted)
    of_request = Counter((item.tenant, item.group) for item in harness.scheduler.running)
    for i, (_, requests) in enumerate(tenants):
        mine = [(1.0, of_request[f"tenant {i}", f"request {j}"]) for j in range(len(requests))]
        all_of_it = [(1.0, count) for count in requests]
        places = counts[f"tenant {i}"]
        assert most_even(places, mine) == most_even(places, all_of_it)
