"""What the sampler is told of the sequences that draw: what does not change is kept, so that a step
costs what is new in it."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from backend_metal.engine.sampling.batch import (
    Biases,
    Ints,
    RowOptions,
    SamplingBatch,
    SamplingRow,
    build_sampling_batch,
)
from backend_metal.engine.sampling.masking import Masks
from backend_metal.engine.sampling.token_counts import History, TokenCounts
from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.step import ScheduledSequence


class SamplingRows:
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._counts = TokenCounts(vocab_size)
        self._biases: WeakKeyDictionary[Sequence, Biases] = WeakKeyDictionary()
        self._latest: tuple[list[Sequence], RowOptions] | None = None
        """Mostly the same draw in the next step."""

    def clear(self) -> None:
        """Give up what is on the device, and all sequences."""
        self._counts.clear()
        self._latest = None

    def options(self, drawing: list[ScheduledSequence]) -> RowOptions:
        """A row for each."""
        sequences = [item.sequence for item in drawing]
        if self._latest is None or self._latest[0] != sequences:
            rows = [SamplingRow(one.sampling, one.seed, self._biases_of(one)) for one in sequences]
            self._latest = sequences, RowOptions(rows, self._vocab_size)
        return self._latest[1]

    def batch(
        self, drawing: list[ScheduledSequence], options: RowOptions, masks: Masks | None
    ) -> SamplingBatch:
        """Of their next tokens; those before are known. ``options``: theirs."""
        positions = np.array([item.stop for item in drawing], np.int64)
        rows = self._counts_rows(drawing, options.penalised)
        counts = None if rows is None else self._counts.table
        return build_sampling_batch(options, positions, masks, counts, rows)

    def _counts_rows(self, drawing: list[ScheduledSequence], penalised: list[int]) -> Ints | None:
        """Of the table of counts, which takes in their tokens; -1: nothing is penalised."""
        if not penalised:
            return None
        rows = np.full(len(drawing), -1, np.int32)
        rows[penalised] = self._counts.rows_of([_history(drawing[i]) for i in penalised])
        return rows

    def _biases_of(self, sequence: Sequence) -> Biases | None:
        if not sequence.sampling.logit_bias:
            return None
        biases = self._biases.get(sequence)
        if biases is None:
            biases = self._biases[sequence] = Biases.of(sequence.sampling.logit_bias)
        return biases


def _history(item: ScheduledSequence) -> History:
    sequence = item.sequence
    return History(sequence, sequence.num_prompt_tokens, sequence.token_range(0, item.stop))
