from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.attention.kv_groups import KVGroup
from backend_metal.engine.batch import GroupTables, build_batch
from backend_metal.engine.batch_builder import BatchBuilder
from backend_metal.engine.schedule.block_table import BlockTable
from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.step import ScheduledSequence, Step
from deployments.backend import SamplingParams
from tests.support.backend_metal.stub_runner import assert_equal
from tests.support.fuzzing import fuzz


@st.composite
def scheduled_sequences(
    draw: st.DrawFn, block_size: int, windows: list[int | None]
) -> list[ScheduledSequence]:
    items = []
    next_block = 0
    for index in range(draw(st.integers(1, 6))):
        computed, uncomputed = draw(st.integers(0, 70)), draw(st.integers(1, 40))
        num_tokens = draw(st.integers(1, uncomputed))
        tokens = range(1000 * index, 1000 * index + computed + uncomputed)
        sequence = Sequence(
            str(index), 0, tokens, SamplingParams(), max_tokens=1, seed=0, arrival=index
        )
        sequence.num_computed_tokens = computed
        num_blocks = -(-(computed + uncomputed) // block_size)
        for window in windows:
            first = 0 if window is None else max(0, computed - window + 1) // block_size
            blocks = range(next_block + num_blocks - first - 1, next_block - 1, -1)
            sequence.block_tables.append(BlockTable(blocks, first))
            next_block += len(blocks)
        items.append(ScheduledSequence(sequence, num_tokens))
    return items


@fuzz(100)
@given(
    data=st.data(),
    block_size=st.sampled_from([8, 16, 32]),
    windows=st.lists(st.none() | st.integers(1, 50), min_size=1, max_size=3),
    origin_multiple=st.sampled_from([1, 32, 64]),
)
def test_packed_arrays_equal_a_loop_over_tokens(
    data: st.DataObject, block_size: int, windows: list[int | None], origin_multiple: int
) -> None:
    scheduled = data.draw(scheduled_sequences(block_size, windows))
    groups = [KVGroup(window, ()) for window in windows]
    batch = build_batch(scheduled, block_size, groups, origin_multiple=origin_multiple)
    tokens, positions, rows = [], [], []
    for row, item in enumerate(scheduled):
        assert batch.cu_seqlens_q[row] == len(tokens)
        for position in range(item.start, item.start + item.num_tokens):
            tokens.append(item.sequence.tokens[position])
            positions.append(position)
        if item.start + item.num_tokens == item.sequence.num_tokens:
            rows.append(len(tokens) - 1)
    assert batch.num_seqs == len(scheduled)
    assert batch.token_ids.tolist() == tokens
    assert batch.positions.tolist() == positions
    assert batch.logit_rows.tolist() == rows
    assert batch.cu_seqlens_q[-1] == len(tokens)
    for index, group in enumerate(batch.groups):
        held = [(item, item.sequence.block_tables[index]) for item in scheduled]
        check_tables(group, block_size, held, origin_multiple)
    for name, array in [*vars(batch).items(), *(i for g in batch.groups for i in vars(g).items())]:
        assert name == "groups" or array is None or array.dtype == np.int32, name


@fuzz(100)
@given(data=st.data(), block_size=st.sampled_from([8, 16]), blocks_a_chunk=st.integers(1, 3))
def test_sequences_are_cut_where_a_chunk_ends(
    data: st.DataObject, block_size: int, blocks_a_chunk: int
) -> None:
    """What each token sees, token by token, where it sees its own chunk."""
    chunk = block_size * blocks_a_chunk
    scheduled = data.draw(scheduled_sequences(block_size, [chunk]))
    (group,) = build_batch(scheduled, block_size, [KVGroup(chunk, (), chunk)]).groups
    assert group.cu_seqlens_q is not None
    seen = []
    for row, (first, end) in enumerate(pairwise(group.cu_seqlens_q.tolist())):
        length = group.seq_lens[row]
        for index in range(first, end):
            numbers = np.arange(length - (end - index) + 1)
            blocks = group.block_tables[row, numbers // block_size]
            seen.append((blocks * block_size + numbers % block_size).tolist())
    expected, slots = [], []
    for item in scheduled:
        (table,) = item.sequence.block_tables
        for position in range(item.start, item.stop):
            visible = range(position // chunk * chunk, position + 1)
            where = [
                table[p // block_size - table.first] * block_size + p % block_size for p in visible
            ]
            expected.append(where)
            slots.append(where[-1])
    assert seen == expected
    assert group.slot_mapping.tolist() == slots


@pytest.mark.parametrize("begins_again", [False, True])
def test_decodes_are_packed_as_when_all_is_packed_anew(begins_again: bool) -> None:
    """What begins again may find others' blocks in the prefix cache, with the same content."""
    groups = [KVGroup(None, ()), KVGroup(9, ())]
    builder = BatchBuilder(8, groups)
    sequences = [
        Sequence(str(row), 0, range(5 + row), SamplingParams(), max_tokens=60, seed=0, arrival=row)
        for row in range(3)
    ]
    for row, sequence in enumerate(sequences):
        sequence.block_tables += [BlockTable([row]), BlockTable([row])]
        sequence.num_computed_tokens = sequence.num_tokens - 1
    for number in range(40):
        step = Step()
        for row, sequence in enumerate(sequences):
            if sequence.num_tokens > 8 * sequence.block_tables[0].end:
                for table in sequence.block_tables:
                    table.append(10 * number + row)
            step.add(ScheduledSequence(sequence, 1))
        assert_equal(builder.build(step), build_batch(step.scheduled, 8, groups))
        for row, sequence in enumerate(sequences):
            if sequence.is_pending:
                sequence.learn(7)
            sequence.num_computed_tokens += 1
            sequence.draw(row)
        if begins_again and number % 5 == 0:
            sequence = sequences[number % 3]
            sequence.num_starts += 1
            sequence.block_tables[0] = BlockTable(range(900, 900 + sequence.block_tables[0].end))


def check_tables(
    group: GroupTables,
    block_size: int,
    held: list[tuple[ScheduledSequence, BlockTable]],
    origin_multiple: int,
) -> None:
    """Blocks are where a loop over tokens finds them, from the first that is held on, or before
    that from a multiple of tokens on."""
    slots = []
    for row, (item, table) in enumerate(held):
        origin = table.first * block_size // origin_multiple * origin_multiple
        assert group.seq_lens[row] == item.stop - origin
        for position in range(item.start, item.stop):
            number = position // block_size - table.first
            slots.append(table[number] * block_size + position % block_size)
            assert group.block_tables[row, (position - origin) // block_size] == table[number]
    assert group.slot_mapping.tolist() == slots
