"""What steps of each size take, on machines that no formula describes."""

from __future__ import annotations

from math import inf

import pytest

from backend_metal.engine.schedule.decode_times import ENOUGH, FORGOTTEN_AFTER, RECENT, DecodeTimes


def seen(seconds_of: dict[int, float], times: DecodeTimes | None = None) -> DecodeTimes:
    times = times or DecodeTimes()
    for num_decodes, seconds in seconds_of.items():
        for _ in range(ENOUGH):
            times.observe(num_decodes, seconds)
    return times


def test_nothing_is_said_of_steps_that_nobody_has_seen() -> None:
    assert DecodeTimes().most_within(1.5, 3) == inf
    few = DecodeTimes()
    for _ in range(ENOUGH - 1):
        few.observe(4, 0.001)
    assert few.most_within(1.5, 3) == inf


def test_between_two_sizes_lies_a_line_and_below_them_one_to_zero() -> None:
    times = seen({8: 8.0, 16: 32.0})
    assert times.most_within(1.5, 8) == 9
    assert times.most_within(2.0, 8) == 10
    assert times.most_within(4.0, 8) == 17
    assert times.most_within(2.0, 2) == 4


def test_of_larger_sizes_than_were_seen_the_next_one_is_worth_a_try() -> None:
    times = seen({4: 1.0})
    assert times.most_within(1.5, 2) == 3
    assert times.most_within(2.5, 2) == 5
    assert seen({5: 1.1}, times).most_within(2.5, 2) == 6


def test_a_stall_counts_little() -> None:
    times = seen({8: 1.0, 9: 1.1, 10: 1.2})
    times.observe(9, 100.0)
    assert times.most_within(1.5, 8) == 11


def test_a_size_that_seems_faster_than_a_smaller_one_is_not() -> None:
    times = seen({8: 1.0, 10: 2.0, 12: 1.2})
    assert times.most_within(1.5, 8) == 9


@pytest.mark.parametrize("noise", [{6: 6.5}, {8: 6.5}])
def test_stalls_of_small_sizes_make_no_room(noise: dict[int, float]) -> None:
    times = seen({**noise, 9: 4.0, 24: 7.0})
    assert times.most_within(1.25, 8) == times.most_within(1.25, 9) == 14


def test_a_size_whose_steps_grow_longer_is_soon_known_to() -> None:
    times = seen({8: 1.0, 20: 1.2})
    assert times.most_within(1.5, 8) == 21
    for _ in range(12):
        seen({20: 3.0}, times)
    assert times.most_within(1.5, 8) == 11


@pytest.mark.parametrize("recent", [True, False])
def test_what_lies_between_counts_while_it_is_recent(recent: bool) -> None:
    """Sequences that grow longer make all sizes slower, also those that are not seen again."""
    times = seen({8: 1.0, 16: 1.1, 20: 3.0})
    for _ in range(0 if recent else RECENT):
        times.observe(20, 3.0)
    assert times.most_within(1.5, 8) == (16 if recent else 11)


def test_larger_sizes_are_tried_again_after_a_while() -> None:
    times = seen({8: 1.0, 9: 5.0})
    for _ in range(FORGOTTEN_AFTER - ENOUGH):
        times.observe(8, 1.0)
    assert times.most_within(1.5, 8) == 8
    for _ in range(ENOUGH + 1):
        times.observe(8, 1.0)
    assert times.most_within(1.5, 8) == 9
