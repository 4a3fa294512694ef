"""Counts kept on the device, against counting by hand."""

from __future__ import annotations

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.engine.sampling.token_counts import History, TokenCounts
from tests.support.fuzzing import fuzz

VOCAB_SIZE = 12
TOKENS = st.lists(st.integers(0, VOCAB_SIZE + 1), max_size=12)


class Sequence:
    def __init__(self, prompt: list[int], output: list[int]) -> None:
        self.prompt, self.output = prompt, output

    def history(self, num_output_tokens: int) -> History:
        token_ids = np.array([*self.prompt, *self.output[:num_output_tokens]], np.int32)
        return History(self, len(self.prompt), token_ids)

    def expected(self, num_output_tokens: int) -> list[int]:
        output = Counter(self.output[:num_output_tokens])
        return [2 * output[token] + (token in self.prompt) for token in range(VOCAB_SIZE)]


def counted(counts: TokenCounts, histories: list[History]) -> list[list[int]]:
    rows = counts.rows_of(histories)
    assert len(set(rows)) == len(rows)
    return [list(np.array(counts.table)[row].tolist()) for row in rows]


@fuzz(150)
@given(
    texts=st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=6),
    steps=st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=6)),
    data=st.data(),
)
def test_any_batches_of_growing_sequences(
    texts: list[tuple[list[int], list[int]]],
    steps: list[list[tuple[int, int]]],
    data: st.DataObject,
) -> None:
    """Sequences come, pause, come back, are dropped, and all counts are lost now and then."""
    sequences = {i: Sequence(*text) for i, text in enumerate(texts)}
    lengths = dict.fromkeys(sequences, 0)
    counts = TokenCounts(VOCAB_SIZE)
    for step in steps:
        batch = {i: more for i, more in step if i in sequences}
        for i, more in batch.items():
            lengths[i] = min(lengths[i] + more, len(sequences[i].output))
        got = counted(counts, [sequences[i].history(lengths[i]) for i in batch])
        assert got == [sequences[i].expected(lengths[i]) for i in batch]
        match data.draw(st.sampled_from(["go on"] * 4 + ["drop", "clear"])):
            case "drop" if batch:
                del sequences[next(iter(batch))]
            case "clear":
                counts.clear()


def test_what_has_been_counted_is_not_read_again() -> None:
    sequence, counts = Sequence([1, 2], [3, 3, 4]), TokenCounts(VOCAB_SIZE)
    counts.rows_of([sequence.history(2)])
    unread = np.array([-1, -1, -1, -1, 4], np.int32)
    assert counted(counts, [History(sequence, 2, unread)]) == [sequence.expected(3)]


def test_rows_are_bounded_by_the_largest_batch() -> None:
    """Those who are gone leave theirs; of those who are not, the latest keep them."""
    counts = TokenCounts(VOCAB_SIZE)
    for i in range(100):
        sequence = Sequence([i % VOCAB_SIZE], [])
        assert counted(counts, [sequence.history(0)]) == [sequence.expected(0)]
    assert counts.table.shape[0] == 1
    held = [Sequence([i % VOCAB_SIZE], [5]) for i in range(40)]
    for i in range(40):
        batch = [held[i], held[(i + 1) % 40]]
        expected = [sequence.expected(1) for sequence in batch]
        assert counted(counts, [sequence.history(1) for sequence in batch]) == expected
    assert counts.table.shape[0] <= 4


@pytest.mark.parametrize("num_new", [1, 3])
def test_a_step_writes_its_new_tokens_in_place(num_new: int) -> None:
    vocab_size = 4096
    sequences = [Sequence([1], [*range(200)]) for _ in range(8)]
    counts = TokenCounts(vocab_size)
    counts.rows_of([sequence.history(1) for sequence in sequences])
    mx.eval(counts.table)
    mx.synchronize()
    before = np.asarray(counts.table).__array_interface__["data"][0]
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    for step in range(1, 5):
        counts.rows_of([sequence.history(1 + step * num_new) for sequence in sequences])
        mx.eval(counts.table)
        mx.synchronize()
    assert np.asarray(counts.table).__array_interface__["data"][0] == before
    assert mx.get_peak_memory() - held < counts.table.nbytes // 2
