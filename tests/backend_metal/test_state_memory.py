from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from backend_metal.engine.memory.kv_blocks import GIB, Demand, GroupBytes
from backend_metal.engine.memory.state_memory import StatePlan, plan_states

MIB = 2**20
BLOCK_SIZE = 16


def plan(
    *,
    bytes_per_block: int = MIB,
    max_num_seqs: int = 8,
    blocks_of_longest: int = 12_500,
    groups: list[GroupBytes] | None = None,
    **changes: int | None,
) -> StatePlan:
    wanted: dict[str, int | None] = {"budget_bytes": 10 * GIB, "bytes_per_slot": 100 * MIB}
    return plan_states(
        groups=groups or [GroupBytes(None, bytes_per_block)],
        demand=Demand(BLOCK_SIZE, max_num_seqs, 512, blocks_of_longest * BLOCK_SIZE),
        **(wanted | changes),  # type: ignore[arg-type]
    )


def test_snapshots_have_a_quarter_of_what_the_kv_cache_has() -> None:
    planned = plan()
    assert planned.num_sequences == 8
    left = 10 * GIB - planned.nbytes
    assert planned.num_snapshots * planned.bytes_per_slot <= left / 4
    assert (planned.num_snapshots + 1) * planned.bytes_per_slot > (left - 100 * MIB) / 4


def test_where_slots_for_all_places_would_take_too_much_fewer_sequences_run() -> None:
    assert plan(max_num_seqs=80).num_sequences == 51


def test_no_more_snapshots_than_there_are_blocks_to_end_at() -> None:
    sizes = {"bytes_per_slot": 1024, "max_num_seqs": 5, "blocks_of_longest": 10}
    assert plan(**sizes).num_snapshots <= 50
    assert plan(**sizes, bytes_per_block=0).num_snapshots == 50


def test_snapshots_have_a_quarter_of_what_windows_have() -> None:
    """However long sequences may be, windows of 33 tokens keep 4 blocks for each of them, as many
    four times over for cached prefixes, and those of a step."""
    most_kept = 8 * 4 * 5 + 512 // BLOCK_SIZE
    window = GroupBytes(33, MIB)
    planned = plan(groups=[window], bytes_per_slot=MIB)
    assert planned.num_snapshots == most_kept // 4
    # Layers that see all tokens have none of those blocks that are wanted for themselves.
    both = plan(groups=[GroupBytes(None, MIB), window], bytes_per_slot=MIB, num_kv_blocks=1000)
    assert both.num_snapshots == (1000 + most_kept) // 4


def test_blocks_that_are_wanted_are_not_those_of_windows() -> None:
    """One sequence of that length needs four blocks of a window, beside them."""
    groups = [GroupBytes(None, MIB), GroupBytes(33, 100 * MIB)]
    assert plan(groups=groups, num_kv_blocks=5_000).num_sequences == 8


def test_snapshots_are_for_as_many_sequences_as_run() -> None:
    half = plan(groups=[GroupBytes(33, 10 * MIB)], bytes_per_slot=GIB, max_num_seqs=100)
    assert half.num_sequences == 5
    assert half == plan(groups=[GroupBytes(33, 10 * MIB)], bytes_per_slot=GIB, max_num_seqs=5)


def test_a_model_without_attention_has_snapshots_of_what_is_left() -> None:
    assert plan(bytes_per_block=0).num_snapshots == (10 * 1024 - 800) // 5 // 100


def test_as_many_blocks_as_are_wanted_leave_the_rest_to_sequences() -> None:
    planned = plan(num_kv_blocks=10_000)
    assert planned == StatePlan(2, 0, 100 * MIB)
    with pytest.raises(ValueError, match=r"10\.00 GiB .* 0\.0977 GiB.* 9\.96 GiB of num_kv"):
        plan(num_kv_blocks=10_200)


def test_a_machine_without_room_for_one_sequence_is_told_the_figures() -> None:
    with pytest.raises(ValueError, match=r"leave 0\.10 GiB .* takes 0\.0977 GiB"):
        plan(budget_bytes=100 * MIB)


def test_snapshots_that_are_asked_for() -> None:
    assert plan(num_state_snapshots=3).num_snapshots == 3
    assert plan(num_state_snapshots=0, num_kv_blocks=10).num_snapshots == 0
    with pytest.raises(ValueError, match=r"num_state_snapshots must be at most 18: .* 1\.86 GiB"):
        plan(num_state_snapshots=19)


@given(
    budget=st.integers(1, 100_000),
    slot=st.integers(1, 2_000),
    block=st.integers(0, 500),
    places=st.integers(1, 64),
    blocks_of_longest=st.integers(1, 1_000),
    blocks=st.none() | st.integers(1, 1000),
)
def test_nothing_is_planned_that_does_not_fit(
    budget: int, slot: int, block: int, places: int, blocks_of_longest: int, blocks: int | None
) -> None:
    for_one = budget // 2 if blocks is None else budget - blocks * block
    assume(for_one >= slot)
    planned = plan(
        budget_bytes=budget,
        bytes_per_slot=slot,
        bytes_per_block=block,
        max_num_seqs=places,
        blocks_of_longest=blocks_of_longest,
        num_kv_blocks=blocks,
    )
    assert 1 <= planned.num_sequences <= places
    assert planned.num_snapshots >= 0
    left = budget - planned.nbytes
    assert left >= (blocks or 0) * block
    if block:
        most_blocks = planned.num_sequences * blocks_of_longest
        kv_bytes = min(left, (blocks or most_blocks) * block)
        assert planned.num_snapshots * slot <= kv_bytes / 4 + 1
