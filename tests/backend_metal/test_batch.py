import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_metal.engine.batch import build_batch
from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.step import ScheduledSequence
from deployments.backend import SamplingParams


@st.composite
def scheduled_sequences(draw: st.DrawFn, block_size: int) -> list[ScheduledSequence]:
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
        for block in range(next_block + num_blocks - 1, next_block - 1, -1):
            sequence.block_table.append(block)
        next_block += num_blocks
        items.append(ScheduledSequence(sequence, num_tokens))
    return items


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data(), block_size=st.sampled_from([8, 16, 32]))
def test_packed_arrays_equal_a_loop_over_tokens(data: st.DataObject, block_size: int) -> None:
    scheduled = data.draw(scheduled_sequences(block_size))
    batch = build_batch(scheduled, block_size)
    tokens, positions, slots, rows = [], [], [], []
    for row, item in enumerate(scheduled):
        assert batch.seq_lens[row] == item.start + item.num_tokens
        assert batch.cu_seqlens_q[row] == len(tokens)
        for position in range(item.start, item.start + item.num_tokens):
            tokens.append(item.sequence.tokens[position])
            positions.append(position)
            block = item.sequence.block_table[position // block_size]
            slots.append(block * block_size + position % block_size)
            assert batch.block_tables[row, position // block_size] == block
        if item.start + item.num_tokens == item.sequence.num_tokens:
            rows.append(len(tokens) - 1)
    assert batch.token_ids.tolist() == tokens
    assert batch.positions.tolist() == positions
    assert batch.slot_mapping.tolist() == slots
    assert batch.logit_rows.tolist() == rows
    assert batch.cu_seqlens_q[-1] == len(tokens)
    for name, array in vars(batch).items():
        assert array.dtype == np.int32, name
