"""A tenant that has most leaves others more than half of the speed that they have beside one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.engine.schedule import decode_times
from backend_metal.engine.schedule.crowding import MOST_SLOWDOWN, SLACK, UNBOUNDED_PART
from backend_metal.engine.schedule.sequence import Sequence, Status
from backend_metal.engine.schedule.step_pace import StepPace
from tests.support.backend_metal.known_cost import knowing
from tests.support.backend_metal.scheduler_harness import Harness
from tests.support.fuzzing import fuzz

LONG = 1000


def made(base: float, max_num_seqs: int = 32) -> Harness:
    return Harness(
        num_blocks=1024, max_num_seqs=max_num_seqs, max_num_batched_tokens=64, pace=knowing(base)
    )


def crowd(
    harness: Harness,
    count: int,
    tenant: str,
    *,
    num_requests: int = 1,
    priority: int = 0,
    weight: float = 1.0,
) -> list[Sequence]:
    return [
        harness.add(
            [7, number],
            max_tokens=LONG,
            tenant=tenant,
            group=f"{tenant}'s {number % num_requests}",
            priority=priority,
            weight=weight,
        )
        for number in range(count)
    ]


def running(harness: Harness) -> Counter[str]:
    return Counter(sequence.tenant for sequence in harness.scheduler.running)


def test_alone_a_tenant_has_every_place() -> None:
    harness = made(base=24.0)
    crowd(harness, 32, "greedy")
    harness.step()
    assert running(harness) == {"greedy": 32}


def test_beside_others_it_has_its_part_of_a_step_however_many_places_are_free() -> None:
    harness = made(base=24.0)
    streams = crowd(harness, 8, "streams")
    harness.step()
    crowd(harness, 32, "greedy")
    harness.step()
    assert running(harness) == {"streams": 8, "greedy": 9}
    for stream in streams:
        harness.scheduler.finish(stream)
    harness.step()
    assert running(harness) == {"greedy": 10}
    for _ in range(22):
        harness.step()
    assert running(harness) == {"greedy": 32}


def test_who_came_first_goes_back_to_its_part() -> None:
    harness = made(base=24.0)
    crowd(harness, 32, "greedy")
    harness.step()
    crowd(harness, 8, "streams")
    harness.step()
    harness.step()
    assert running(harness) == {"streams": 8, "greedy": 9}


def test_a_request_that_ends_and_is_followed_by_another_preempts_nobody() -> None:
    harness = made(base=24.0)
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


def test_an_ordinary_crowd_is_left_alone_beside_one_neighbour() -> None:
    harness = made(base=0.0)
    crowd(harness, 8, "crowd", num_requests=8)
    harness.step()
    crowd(harness, 1, "neighbour")
    for _ in range(3):
        harness.step()
    assert running(harness) == {"crowd": 8, "neighbour": 1}


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(lambda count: 3 + 0.1 * count, id="a long base"),
        pytest.param(lambda count: 1 + 0.3 * count, id="a short base"),
        pytest.param(lambda count: 3 + (0.6 * (count - 9) if count > 9 else 0.0), id="a bend"),
        pytest.param(lambda count: 2.0 * -(-count // 8), id="tiles of eight"),
    ],
)
def test_others_keep_their_speed_on_a_machine_that_nobody_knew(
    seconds: Callable[[int], float],
) -> None:
    """Whatever steps cost is learned from them."""
    pace = StepPace()
    harness = Harness(
        num_blocks=8192, max_num_seqs=32, max_num_batched_tokens=64, pace=pace, checks=False
    )
    crowd(harness, 8, "streams", num_requests=8)
    crowd(harness, 1, "neighbour")

    def run(num_steps: int) -> None:
        for _ in range(num_steps):
            harness.step()
            pace.decode_times.observe(count := running(harness).total(), seconds(count))

    run(20)
    crowd(harness, 40, "greedy")
    run(200)
    before = harness.scheduler.num_preemptions
    run(50)
    assert harness.scheduler.num_preemptions - before <= 1
    counts = running(harness)
    assert counts["streams"] == 8
    assert counts["neighbour"] == 1
    beside_one = seconds(10)
    assert seconds(counts.total()) <= 2 * beside_one or counts["greedy"] <= 8
    assert counts["greedy"] == 23 or seconds(counts.total() + 1) > MOST_SLOWDOWN * beside_one


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often what steps take was worked out."""
    calls: Counter[str] = Counter()
    work_out = decode_times.np.interp

    def counting(*arguments: Any) -> Any:
        calls["interp"] += 1
        return work_out(*arguments)

    monkeypatch.setattr(decode_times.np, "interp", counting)
    return calls


def test_beside_an_ordinary_crowd_nobody_asks_what_steps_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = counted(monkeypatch)
    harness = made(base=0.0)
    crowd(harness, 8, "crowd", num_requests=8)
    crowd(harness, 1, "neighbour")
    for _ in range(10):
        harness.step()
    assert not calls


def test_beside_a_greedy_one_it_is_worked_out_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = made(base=0.0)
    streams = crowd(harness, 8, "streams", num_requests=8)
    crowd(harness, 64, "greedy")
    for _ in range(5):
        harness.step()
    calls = counted(monkeypatch)
    for _ in range(10):
        harness.step()
        harness.scheduler.pace.decode_times.observe(len(streams) + 5, 0.013)
    assert calls["interp"] <= 10


def test_nobody_makes_room_for_those_that_rank_behind() -> None:
    harness = made(base=1.0)
    crowd(harness, 1, "later", priority=1)
    harness.step()
    crowd(harness, 20, "urgent", priority=0)
    harness.step()
    assert running(harness) == {"later": 1, "urgent": 20}


def test_twice_the_weight_is_twice_the_part() -> None:
    for weight, count in ((1.0, 8), (2.0, 16)):
        harness = made(base=24.0)
        crowd(harness, 4, "streams")
        harness.step()
        crowd(harness, 30, "heavy", weight=weight)
        harness.step()
        assert running(harness) == {"streams": 4, "heavy": count}


def test_who_asks_for_as_much_as_another_gets_as_much() -> None:
    harness = made(base=2.0)
    crowd(harness, 40, "one")
    harness.step()
    crowd(harness, 40, "two")
    for _ in range(5):
        harness.step()
    assert running(harness) == {"one": 16, "two": 16}


@pytest.mark.parametrize(("num_requests", "count"), [(1, 3), (4, 4), (6, 6), (8, 8), (16, 8)])
def test_sequences_of_one_request_do_not_weigh_as_much_as_requests_of_others(
    num_requests: int, count: int
) -> None:
    """Where each sequence costs as much as any other, eleven take eleven ninths of nine."""
    harness = made(base=0.0)
    crowd(harness, 8, "streams", num_requests=8)
    harness.step()
    crowd(harness, 64, "greedy", num_requests=num_requests)
    for _ in range(5):
        harness.step()
    assert running(harness) == {"streams": 8, "greedy": count}


@fuzz(30)
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
            part = MOST_SLOWDOWN * (base + sum(others) + 1) - base - sum(others)
            part = max(part, UNBOUNDED_PART * places)
            assert not others or count <= SLACK * max(1.0, *others, part * 1.001), tenant
        harness.step()
    assert all(sequence.status is Status.FINISHED for sequence in added)


def test_a_tenant_of_negligible_weight_takes_no_places_from_others_and_gives_them_none() -> None:
    counts = []
    for num_probes in (0, 1):
        harness = made(base=1.0)
        crowd(harness, 3, "client")
        harness.step()
        crowd(harness, num_probes, "probe", weight=0.001)
        harness.step()
        assert running(harness) == Counter(client=3, probe=num_probes)
        crowd(harness, 1, "other")
        crowd(harness, 8, "greedy")
        harness.step()
        counts.append(running(harness) - Counter(probe=num_probes))
    assert counts[0] == counts[1]
