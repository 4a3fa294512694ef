"""What a group's window makes of tables: which blocks are held, given up, and looked for again."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.engine.schedule.block_group import BlockGroup, most_blocks_held
from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.engine.schedule.block_table import BlockTable

SIZES = st.sampled_from([8, 16, 32])


def visible(position: int, window: int | None) -> range:
    """The keys that a token sees, by the operators' rule."""
    return range(0 if window is None else max(0, position - window + 1), position + 1)


@given(
    block_size=SIZES,
    window=st.none() | st.integers(1, 100),
    position=st.integers(0, 400),
    later=st.integers(0, 100),
)
def test_no_token_sees_what_lies_before_the_first_block(
    block_size: int, window: int | None, position: int, later: int
) -> None:
    group = BlockGroup(BlockPool(1), block_size, window)
    first = group.first_block(position)
    assert visible(position, window)[0] // block_size == first
    assert group.first_block(position + later) >= first


@given(block_size=SIZES, window=st.integers(1, 100), position=st.integers(0, 400))
def test_a_full_table_has_room_for_a_block_of_tokens_more(
    block_size: int, window: int, position: int
) -> None:
    group = BlockGroup(BlockPool(1), block_size, window)
    end = group.wanted_end(group.first_block(position), num_tokens=10**6)
    assert end * block_size >= position + block_size
    assert end - group.first_block(position) == most_blocks_held(window, block_size)


@given(
    block_size=SIZES,
    window=st.none() | st.integers(1, 60),
    chunks=st.lists(st.integers(1, 40), min_size=1, max_size=12),
)
def test_a_table_holds_what_is_seen_and_no_more(
    block_size: int, window: int | None, chunks: list[int]
) -> None:
    num_blocks = -(-sum(chunks) // block_size)
    group = BlockGroup(BlockPool(num_blocks), block_size, window)
    table = BlockTable()
    start = 0
    for chunk in chunks:
        group.reserve(table, -(-(start + chunk) // block_size) - table.end)
        for position in (start, start + chunk - 1):
            seen = visible(position, window)
            assert table.first <= seen[0] // block_size <= seen[-1] // block_size < table.end
        start += chunk
        group.pass_by(table, start, borders=())
        group.check_integrity([(table, start)])
        if window is not None:
            assert len(table) <= most_blocks_held(window, block_size)
    group.pool.release(table.view().tolist())
    group.check_integrity([])


def test_blocks_before_a_border_outlive_others_that_are_passed_by() -> None:
    group = BlockGroup(BlockPool(10), 8, window=16)
    table = BlockTable()
    group.reserve(table, 8)
    blocks = table.view().tolist()
    for number, block in enumerate(blocks):
        group.pool.cache(block, bytes([number]))
    group.pass_by(table, 64, borders=(3,))
    assert table.first == 6
    # The first token behind three blocks sees two of them.
    for _ in range(2 + 4):
        group.pool.allocate()
    assert [group.pool.find(bytes([number])) for number in range(6)] == [
        None, blocks[1], blocks[2], None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("num_blocks", "window", "capacity"),
    [(5, None, 40), (4, 17, sys.maxsize), (3, 17, 24), (2, 1, sys.maxsize), (1, 1, 8)],
)
def test_a_window_group_that_holds_one_window_holds_any_sequence(
    num_blocks: int, window: int | None, capacity: int
) -> None:
    assert BlockGroup(BlockPool(num_blocks), 8, window).capacity_tokens == capacity
