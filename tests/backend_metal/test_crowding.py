"""A tenant that has most takes less of a step than all else that is in it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_metal.engine.schedule.crowding import PART, SLACK
from backend_metal.engine.schedule.sequence import Sequence, Status
from tests.support.backend_metal.known_cost import knowing
from tests.support.backend_metal.scheduler_harness import Harness

LONG = 1000


def made(base: float, max_num_seqs: int = 32) -> Harness:
    pace = knowing(base)
    assert pace.cost.base_in_decodes == pytest.approx(base, rel=0.02)
    return Harness(num_blocks=8192, max_num_seqs=max_num_seqs, max_num_batched_tokens=64, pace=pace)


def crowd(
    harness: Harness, count: int, tenant: str, *, priority: int = 0, weight: float = 1.0
) -> list[Sequence]:
    group = f"{tenant}'s"
    return [
        harness.add(
            [7, number],
            max_tokens=LONG,
            tenant=tenant,
            group=group,
            priority=priority,
            weight=weight,
        )
        for number in range(count)
    ]


def running(harness: Harness) -> Counter[str]:
    return Counter(sequence.tenant for sequence in harness.scheduler.running)


def test_alone_a_tenant_has_every_place() -> None:
    harness = made(base=13.0)
    crowd(harness, 32, "greedy")
    harness.step()
    assert running(harness) == {"greedy": 32}


def test_beside_others_it_has_its_part_of_a_step_however_many_places_are_free() -> None:
    harness = made(base=13.0)
    streams = crowd(harness, 8, "streams")
    harness.step()
    crowd(harness, 32, "greedy")
    harness.step()
    assert running(harness) == {"streams": 8, "greedy": 10}
    for stream in streams:
        harness.scheduler.finish(stream)
    harness.step()
    assert running(harness) == {"greedy": 11}
    for _ in range(21):
        harness.step()
    assert running(harness) == {"greedy": 32}


def test_who_came_first_goes_back_to_its_part() -> None:
    harness = made(base=13.0)
    crowd(harness, 32, "greedy")
    harness.step()
    crowd(harness, 8, "streams")
    harness.step()
    harness.step()
    assert running(harness) == {"streams": 8, "greedy": 10}


def test_a_request_that_ends_and_is_followed_by_another_preempts_nobody() -> None:
    harness = made(base=13.0)
    streams = crowd(harness, 8, "streams")
    harness.step()
    crowd(harness, 32, "greedy")
    harness.step()
    before = harness.scheduler.num_preemptions
    for number in range(50):
        harness.scheduler.finish(streams[number % 8])
        harness.step()
        [streams[number % 8]] = crowd(harness, 1, "streams")
        harness.step()
    assert harness.scheduler.num_preemptions == before


def test_where_a_sequence_costs_next_to_nothing_all_places_are_taken() -> None:
    harness = made(base=200.0)
    crowd(harness, 1, "single")
    harness.step()
    crowd(harness, 40, "many")
    harness.step()
    assert running(harness) == {"single": 1, "many": 31}


def test_nobody_makes_room_for_those_that_rank_behind() -> None:
    harness = made(base=1.0)
    crowd(harness, 1, "later", priority=1)
    harness.step()
    crowd(harness, 20, "urgent", priority=0)
    harness.step()
    assert running(harness) == {"later": 1, "urgent": 20}


def test_twice_the_weight_is_twice_the_part() -> None:
    harness = made(base=2.0)
    crowd(harness, 4, "streams")
    harness.step()
    crowd(harness, 30, "heavy", weight=2.0)
    harness.step()
    assert running(harness) == {"streams": 4, "heavy": 8}


def test_who_asks_for_as_much_as_another_gets_as_much() -> None:
    harness = made(base=2.0)
    crowd(harness, 40, "one")
    harness.step()
    crowd(harness, 40, "two")
    for _ in range(5):
        harness.step()
    assert running(harness) == {"one": 16, "two": 16}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    wanted=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    base=st.sampled_from([0.5, 2.0, 7.0, 40.0]),
    places=st.integers(1, 24),
    order=st.randoms(use_true_random=False),
)
def test_nobody_has_more_than_its_part_and_all_come_to_their_end(
    wanted: list[int], base: float, places: int, order: object
) -> None:
    harness = made(base, places)
    arrivals = [f"tenant {number}" for number, count in enumerate(wanted) for _ in range(count)]
    order.shuffle(arrivals)  # type: ignore[attr-defined]
    added = [
        harness.add([5, number], max_tokens=3 + number % 7, tenant=tenant)
        for number, tenant in enumerate(arrivals)
    ]
    while harness.scheduler.has_work:
        for _ in range(3):
            harness.scheduler.schedule()
        counts = running(harness)
        for tenant, count in counts.items():
            others = [counts[other] for other in counts if other != tenant]
            part = PART * (base + sum(others)) * 1.02
            assert not others or count <= SLACK * max(1.0, *others, part), tenant
        harness.step()
    assert all(sequence.status is Status.FINISHED for sequence in added)
