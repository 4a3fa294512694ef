"""What one step runs, a mixed batch of decodes and prefill chunks, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import mlx.core as mx

from backend_metal.engine.pooling.readout import Readout
from backend_metal.engine.schedule.int_buffer import Int32Array
from backend_metal.engine.schedule.sequence import FROM_ZEROS, Sequence, Status

NO_ROWS = range(0)


@dataclass
class ScheduledSequence:
    """The next ``num_tokens`` uncomputed tokens of one sequence. What is said of them holds as of
    when they were scheduled, whatever becomes of the sequence."""

    sequence: Sequence
    num_tokens: int
    draws: bool = False
    """Whether a token is drawn behind them. Said by ``Scheduler.draw``, once all tokens before are
    known: their end may be one that no token follows."""

    def __post_init__(self) -> None:
        sequence = self.sequence
        self.start = sequence.num_computed_tokens
        self.stop = self.start + self.num_tokens
        self.num_starts = sequence.num_starts
        self.decodes = self.num_tokens == 1 and sequence.is_prompt_computed
        """Whether this is the next token of an answer, rather than part of a prompt."""
        self.is_last = self.stop == sequence.num_tokens
        """Whether the step reaches the newest token."""
        readout, readings = sequence.readout, sequence.readings
        self.has_logits = self.is_last and (readout is None or readout.reads_logits)
        """Whether the logits of the last token are wanted, to draw from or to be read."""
        self.prompt_rows = readings.rows(self.start, self.stop) if readings else NO_ROWS
        """Positions in the sequence whose logits tell of the prompt's next token."""
        held = sequence.state
        self.read_slot, self.write_slot = (held.read, held.write) if held else (FROM_ZEROS, -1)
        """Where the state of recurrent layers is before these tokens, and where it goes."""

    @property
    def token_ids(self) -> Int32Array:
        return self.sequence.token_range(self.start, self.stop)

    @property
    def has_prompt(self) -> bool:
        """Whether the prompt is computed behind them."""
        return self.stop >= self.sequence.num_prompt_tokens

    @property
    def may_draw(self) -> bool:
        """Whether the next token may be drawn from these logits. Where a token turned out to be the
        sequence's last, or others to be forced behind it, none is."""
        return self.sequence.readout is None and self.stop == self.sequence.num_tokens

    @property
    def ends_readout(self) -> bool:
        """Whether the sequence's readout has taken the last of what it reads, and has not begun
        again."""
        sequence = self.sequence
        return (
            sequence.readout is not None
            and self.has_prompt
            and self.num_starts == sequence.num_starts
        )

    @property
    def is_all(self) -> bool:
        """Whether nothing is left to be computed of the sequence."""
        sequence = self.sequence
        return self.stop == sequence.num_known_tokens and not sequence.wants_more


@dataclass
class Step:
    scheduled: list[ScheduledSequence] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    """Those that begin to run with it."""
    num_tokens: int = 0
    num_decodes: int = 0
    num_ends: int = 0
    """Sequences whose last token's logits are wanted."""
    readouts: list[Readout] = field(default_factory=list)
    reading: list[ScheduledSequence] = field(default_factory=list)
    """Those whose prompt is read."""
    drawing: list[ScheduledSequence] = field(default_factory=list)
    """Those that draw, once ``Scheduler.draw`` has said so."""
    is_typical: bool = True
    """Whether its time tells what such steps take: not while one is recorded."""

    def add(self, item: ScheduledSequence) -> None:
        self.scheduled.append(item)
        self.num_tokens += item.num_tokens
        self.num_decodes += item.decodes
        self.num_ends += item.has_logits
        if item.sequence.readout is not None:
            self.readouts.append(item.sequence.readout)
        if item.prompt_rows:
            self.reading.append(item)

    @property
    def decodes_alone(self) -> bool:
        """Whether each sequence has one token of its answer, and no more."""
        return self.num_decodes == len(self.scheduled) and self.only_draws

    @property
    def has_newest_alone(self) -> bool:
        """Whether each sequence has its newest token, whose logits are wanted, and no more."""
        return self.num_tokens == len(self.scheduled) == self.num_ends and self.only_draws

    @property
    def only_draws(self) -> bool:
        """Whether nothing is read but what tokens are drawn from."""
        return not (self.readouts or self.reading)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for what comes of it."""
        return any(item.sequence.status is not Status.FINISHED for item in self.scheduled)


class TokenDraw(NamedTuple):
    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """The most likely (token id, logprob), best first."""


class Draws(Protocol):
    """The tokens that a step draws, under way."""

    @property
    def token_ids(self) -> mx.array:
        """int32 ``[len(step.drawing)]``, on the device."""
        ...

    def wait(self) -> list[TokenDraw]:
        """One for each of ``step.drawing``, in order, once the step is done. Raises what made the
        step fail."""
        ...


class Forward(Protocol):
    """A step's model, submitted unless ``holds_up``."""

    @property
    def holds_up(self) -> bool:
        """Whether ``sample`` takes longer than a step: others should have their tokens before."""
        ...

    def sample(self) -> Draws:
        """Submit the rest of the step, which ``Scheduler.draw`` has been told of."""
        ...


class Runner(Protocol):
    """What the engine needs of a model. All that is submitted is done in its order."""

    @property
    def holds_up(self) -> bool:
        """Whether it takes about as long to submit a step as to run it, since little of it may
        wait for the device."""
        ...

    @property
    def records_decodes(self) -> bool:
        """Whether steps that decode alone are launched as they were recorded."""
        ...

    def forward(self, step: Step, drawn: mx.array | None) -> Forward:
        """Submit the model of a step, or have ``sample`` do it. ``drawn``: the ``token_ids`` of the
        step before it, which the pending tokens in it are."""
        ...

    def reset(self) -> None:
        """Forget every cached K/V after a failed run, and what is under way."""
        ...
