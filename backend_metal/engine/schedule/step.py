"""What one step runs, a mixed batch of decodes and prefill chunks, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from backend_metal.engine.pooling.readout import Readout
from backend_metal.engine.schedule.int_buffer import Int32Array
from backend_metal.engine.schedule.prompt_readings import PromptReadings
from backend_metal.engine.schedule.sequence import Sequence


@dataclass
class ScheduledSequence:
    """The next ``num_tokens`` uncomputed tokens of one sequence."""

    sequence: Sequence
    num_tokens: int

    @property
    def start(self) -> int:
        return self.sequence.num_computed_tokens

    @property
    def token_ids(self) -> Int32Array:
        return self.sequence.token_range(self.start, self.start + self.num_tokens)

    @property
    def decodes(self) -> bool:
        """Whether this is the next token of an answer, rather than part of a prompt."""
        return self.num_tokens == 1 and self.sequence.is_prompt_computed

    @property
    def is_last(self) -> bool:
        """Whether the step reaches the newest token."""
        return self.num_tokens == self.sequence.num_uncomputed_tokens

    @property
    def samples(self) -> bool:
        """Whether the logits of its last token draw the next one."""
        return self.is_last and self.sequence.readout is None

    @property
    def has_logits(self) -> bool:
        """Whether those logits are wanted, to draw from or to be read."""
        readout = self.sequence.readout
        return self.is_last and (readout is None or readout.reads_logits)

    @property
    def prompt_rows(self) -> range:
        """Positions in the sequence whose logits tell of the prompt's next token."""
        readings = self.sequence.readings
        return readings.rows(self.start, self.start + self.num_tokens) if readings else range(0)


@dataclass
class Step:
    scheduled: list[ScheduledSequence] = field(default_factory=list)
    num_tokens: int = 0
    num_decodes: int = 0

    def add(self, item: ScheduledSequence) -> None:
        self.scheduled.append(item)
        self.num_tokens += item.num_tokens
        self.num_decodes += item.decodes

    @property
    def readouts(self) -> list[Readout]:
        return [one for item in self.scheduled if (one := item.sequence.readout) is not None]

    @property
    def reading(self) -> list[tuple[PromptReadings, Int32Array]]:
        """Whose prompt is read, and the tokens that are told of."""
        return [
            (item.sequence.readings, item.sequence.token_range(rows.start + 1, rows.stop + 1))
            for item in self.scheduled
            if item.sequence.readings and (rows := item.prompt_rows)
        ]

    @property
    def sampling(self) -> list[ScheduledSequence]:
        return [item for item in self.scheduled if item.samples]


@dataclass(frozen=True)
class TokenDraw:
    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """The most likely (token id, logprob), best first."""


class Runner(Protocol):
    """What the engine needs of a model."""

    def run(self, step: Step) -> list[TokenDraw]:
        """One draw for each of ``step.sampling``, in order."""
        ...

    def reset(self) -> None:
        """Forget every cached K/V after a failed run."""
        ...
