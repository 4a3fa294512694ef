"""What the sampler is told of the sequences that draw: what does not change is kept, so that a step
costs what is new in it."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import mlx.core as mx

from backend_metal.engine.sampling.batch import Biases, SamplingRow, penalises
from backend_metal.engine.sampling.token_counts import History, TokenCounts
from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.step import ScheduledSequence


class SamplingRows:
    def __init__(self, vocab_size: int) -> None:
        self._counts = TokenCounts(vocab_size)
        self._biases: WeakKeyDictionary[Sequence, Biases] = WeakKeyDictionary()

    @property
    def counts(self) -> mx.array:
        """The table that rows with penalties refer to."""
        return self._counts.table

    def clear(self) -> None:
        """Give up what is on the device."""
        self._counts.clear()

    def build(self, drawing: list[ScheduledSequence]) -> list[SamplingRow]:
        """One row for each, whose tokens so far are known."""
        penalised = [item for item in drawing if penalises(item.sequence.sampling)]
        rows = self._counts.rows_of([_history(item) for item in penalised]) if penalised else []
        row_of = {item.sequence: row for item, row in zip(penalised, rows, strict=True)}
        return [
            SamplingRow(
                item.sequence.sampling,
                item.sequence.seed,
                item.stop,
                row_of.get(item.sequence),
                self._biases_of(item.sequence),
            )
            for item in drawing
        ]

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
