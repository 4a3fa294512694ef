"""Where snapshots are taken: at few borders of blocks, and where a prompt may be left."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backend_metal.engine.schedule.snapshot_borders import SnapshotPolicy, snapshot_borders


def borders(
    start: int, stop: int, *parting: int, policy: SnapshotPolicy | None = None
) -> list[int]:
    return snapshot_borders(
        start, stop, parting=parting, block_size=16, policy=policy or SnapshotPolicy()
    )


def test_the_last_border_before_the_newest_token() -> None:
    assert borders(0, 1000) == [992]
    assert borders(0, 993) == [992]


def test_a_prompt_that_ends_at_a_border_is_kept_a_block_before() -> None:
    assert borders(0, 992) == [976]


def test_a_long_prompt_is_kept_every_interval() -> None:
    assert borders(0, 9000) == [2048, 4096, 6144, 8192, 8992]


def test_one_that_ends_close_behind_an_interval_is_kept_once() -> None:
    assert borders(0, 2100) == [2096]


def test_before_the_last_message_and_at_the_end() -> None:
    assert borders(0, 1000, 500) == [496, 992]


def test_a_short_last_message_is_computed_again() -> None:
    assert borders(0, 540, 500) == [496]


def test_of_two_places_where_prompts_part_the_lower() -> None:
    assert borders(0, 2000, 520, 500) == [496, 1984]


def test_nothing_close_behind_the_snapshot_that_it_begins_with() -> None:
    assert borders(496, 540, 500) == []


def test_what_is_too_short_for_a_block() -> None:
    assert borders(0, 16, policy=SnapshotPolicy(least_gain=1)) == []
    assert borders(0, 17, policy=SnapshotPolicy(least_gain=1)) == [16]


@given(
    blocks_before=st.integers(0, 40),
    num_tokens=st.integers(1, 9000),
    parting=st.lists(st.integers(0, 10_000), max_size=3),
    interval=st.integers(1, 3000),
    least_gain=st.integers(1, 300),
    block_size=st.sampled_from([8, 16, 32]),
)
def test_borders_are_apart_and_leave_a_token(
    blocks_before: int,
    num_tokens: int,
    parting: list[int],
    interval: int,
    least_gain: int,
    block_size: int,
) -> None:
    start = blocks_before * block_size
    stop = start + num_tokens
    policy = SnapshotPolicy(interval, least_gain)
    taken = snapshot_borders(start, stop, parting=parting, block_size=block_size, policy=policy)
    assert all(border % block_size == 0 and start < border < stop for border in taken)
    assert all(after - before >= least_gain for before, after in pairwise([start, *taken]))
    last = (stop - 1) // block_size * block_size
    assert last - (taken[-1] if taken else start) < least_gain, "the end is far from a snapshot"
