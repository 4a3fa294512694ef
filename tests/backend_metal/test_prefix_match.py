"""The prefix that is taken from the cache is the longest one that every group can go on from."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backend_metal.engine.schedule.block_group import BlockGroup
from backend_metal.engine.schedule.prefix_match import match_prefix, why_no_more
from backend_metal.engine.schedule.sequence import Sequence
from deployments.backend import SamplingParams
from tests.support.backend_metal.block_groups import BLOCK_SIZE, make_groups

NUM_BLOCKS = 12
NUMBERS = st.integers(0, NUM_BLOCKS - 1)


class StubStates:
    """Snapshots behind some of a sequence's blocks."""

    def __init__(self, ends: set[int]) -> None:
        self._ends = ends | {0}

    def deepest(self, sequence: Sequence, num_blocks: int) -> int:
        return max(end for end in self._ends if end <= num_blocks)

    def was_evicted(self, sequence: Sequence, first: int, stop: int) -> bool:
        return False


def sequence_of(num_blocks: int) -> Sequence:
    """One token more than so many blocks hold."""
    tokens = range(num_blocks * BLOCK_SIZE + 1)
    return Sequence("one", 0, tokens, SamplingParams(), max_tokens=1, seed=0, arrival=0)


def fill(group: BlockGroup, cached: set[int]) -> None:
    hashes = sequence_of(NUM_BLOCKS).block_hashes(BLOCK_SIZE)
    for number in sorted(cached):
        group.pool.cache(group.pool.allocate(), hashes[number])


def can_go_on(cached: set[int], window: int | None, end: int) -> bool:
    first = 0 if window is None else max(0, end * BLOCK_SIZE - window + 1)
    return {position // BLOCK_SIZE for position in range(first, end * BLOCK_SIZE)} <= cached


@given(
    has_whole=st.booleans(),
    windows=st.lists(st.integers(1, 60), unique=True, max_size=3),
    length=st.integers(0, NUM_BLOCKS),
    lost=st.lists(st.sets(NUMBERS, max_size=3), min_size=4, max_size=4),
    snapshots=st.none() | st.sets(st.integers(1, NUM_BLOCKS)),
)
def test_the_longest_prefix_is_the_one_that_trying_all_finds(
    has_whole: bool,
    windows: list[int],
    length: int,
    lost: list[set[int]],
    snapshots: set[int] | None,
) -> None:
    sizes = dict.fromkeys(windows, NUM_BLOCKS)
    groups = make_groups(NUM_BLOCKS if has_whole or not windows else 0, sizes)
    caches = [set(range(NUM_BLOCKS)) - one for one in lost[: len(groups)]]
    for group, cached in zip(groups, caches, strict=True):
        fill(group, cached)
    pairs = list(zip(groups, caches, strict=True))

    def longest(pairs: list[tuple[BlockGroup, set[int]]], ends: set[int] | None) -> int:
        return max(
            end
            for end in range(length + 1)
            if all(can_go_on(cached, group.window, end) for group, cached in pairs)
            and (ends is None or end in ends | {0})
        )

    sequence = sequence_of(length)
    states: Any = None if snapshots is None else StubStates(snapshots)
    match = match_prefix(sequence, groups, states)
    assert match.num_blocks == longest(pairs, snapshots)
    hashes = sequence.block_hashes(BLOCK_SIZE)
    for group, blocks in zip(groups, match.blocks, strict=True):
        first = match.num_blocks - len(blocks)
        assert first == group.first_block(match.num_blocks * BLOCK_SIZE)
        assert blocks == [group.pool.find(hashes[n]) for n in range(first, match.num_blocks)]
    whole = [pair for pair in pairs if pair[0].window is None]
    assert match.num_known == longest(whole or pairs, None)

    reason = why_no_more(sequence, match, groups, states)
    assert (reason is None) == (match.num_blocks == length)
    if match.num_blocks < match.num_known:
        found_with_windows = longest(pairs, None)
        has_deeper = snapshots is None or any(
            match.num_blocks < end <= match.num_known for end in snapshots
        )
        assert reason == ("evicted" if has_deeper else "no_snapshot")
        assert match.num_blocks <= found_with_windows
