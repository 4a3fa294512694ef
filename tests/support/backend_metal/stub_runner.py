"""A stand-in for the model that checks what a real one would depend on: the cache's content.

Every slot remembers which (token, all tokens before it) was written there, and a step that would
attend to a slot with any other content fails; in a group with a window, to a slot inside it. So
does one that would read a recurrent state of any other tokens than those before its own. Tokens are
drawn as a hash of everything before them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from backend_metal.attention.kv_groups import KVGroup
from backend_metal.engine.batch import Batch, build_batch
from backend_metal.engine.batch_builder import BatchBuilder
from backend_metal.engine.schedule.block_group import BlockGroup
from backend_metal.engine.schedule.sequence import pending_token
from backend_metal.engine.schedule.step import ScheduledSequence, Step, TokenDraw


class CacheMismatchError(Exception):
    """A sequence would have attended to K/V that is not its own, or read such a state."""


class StubRunner:
    """Does things as a device does, in the order in which they are submitted; what it draws is
    there when it is waited for."""

    def __init__(
        self, groups: tuple[BlockGroup, ...], vocab_size: int = 50, num_state_slots: int = 0
    ) -> None:
        """``num_state_slots``: of recurrent state; 0: the model has none."""
        self.block_size = groups[0].block_size
        self.windows = [group.window for group in groups]
        self._groups = [KVGroup(window, ()) for window in self.windows]
        self._batches = BatchBuilder(self.block_size, self._groups)
        self.vocab_size = vocab_size
        self.caches = [
            np.zeros(group.pool.num_blocks * self.block_size, np.uint64) for group in groups
        ]
        self.states = np.zeros(num_state_slots, np.uint64)
        self.fails_at: Literal["", "forward", "sample", "wait"] = ""
        """Where the next step to come there fails."""
        self.holds_up = False
        self.records_decodes = False

    def reset(self) -> None:
        for cache in self.caches:
            cache[:] = 0
        self.states[:] = 0

    def fail(self, place: str) -> None:
        if self.fails_at == place:
            self.fails_at = ""
            raise RuntimeError("injected failure")

    def forward(self, step: Step, drawn: Any) -> StubForward:
        self.fail("forward")
        batch = self._batches.build(step)
        assert_equal(batch, build_batch(step.scheduled, self.block_size, self._groups))
        chains = [self._chain(item, drawn) for item in step.scheduled]
        written = [chain[item.start :] for chain, item in zip(chains, step.scheduled, strict=True)]
        for group, cache in zip(batch.groups, self.caches, strict=True):
            slots = group.slot_mapping
            assert len(set(slots)) == len(slots), "two tokens, one slot"
            cache[slots] = np.concatenate(written)
        for item, states in zip(step.scheduled, written, strict=True):
            if item.sequence.readout is not None:
                item.sequence.readout.add(states, item.start)  # type: ignore[arg-type]
        for group, cache, window in zip(batch.groups, self.caches, self.windows, strict=True):
            for row, item in enumerate(step.scheduled):
                first_seen = max(0, item.start - window + 1) if window else 0
                origin = item.stop - group.seq_lens[row]
                positions = np.arange(first_seen, item.stop) - origin
                assert positions[0] >= 0, "blocks that a token sees are not in its table"
                blocks = group.block_tables[row][positions // self.block_size]
                read = cache[blocks * self.block_size + positions % self.block_size]
                if not np.array_equal(read, chains[row][first_seen:]):
                    raise CacheMismatchError(f"{item.sequence.request_id} reads foreign K/V")
        if len(self.states):
            self._run_states(step, batch, chains)
        return StubForward(self, step, [int(chain[-1]) for chain in chains])

    def _run_states(self, step: Step, batch: Batch, chains: list[np.ndarray]) -> None:
        reads, writes = batch.read_slots.tolist(), batch.write_slots.tolist()
        assert len(set(writes)) == len(writes), "a slot of state is written twice"
        before = self.states.copy()
        for item, read, write, chain in zip(step.scheduled, reads, writes, chains, strict=True):
            assert read == write or read not in writes, "a slot is read while it is written"
            expected = chain[item.start - 1] if item.start else 0
            if (before[read] if read >= 0 else 0) != expected:
                raise CacheMismatchError(f"{item.sequence.request_id} reads a foreign state")
            self.states[write] = chain[-1]

    def _chain(self, item: ScheduledSequence, drawn: Any) -> np.ndarray:
        """What the tokens up to the step's last one write."""
        tokens = item.sequence.token_range(0, item.stop).copy()
        assert (tokens[:-1] >= 0).all(), "two tokens are pending"
        if tokens[-1] < 0:
            names = [pending_token(number) for number in range(len(drawn))]
            tokens[-1] = drawn[names.index(tokens[-1])]
        return content_chain(tokens)


def assert_equal(batch: Batch, expected: Batch) -> None:
    pairs = [(batch, expected), *zip(batch.groups, expected.groups, strict=True)]
    for one, other in pairs:
        for field in fields(one):
            if field.name != "groups":
                kept, built = (getattr(of, field.name) for of in (one, other))
                assert np.array_equal(kept, built), f"{field.name} is another, packed anew"


@dataclass
class StubForward:
    runner: StubRunner
    step: Step
    contents: list[int]
    """Of each sequence's last token."""
    holds_up: bool = False

    def sample(self) -> StubDraws:
        self.runner.fail("sample")
        drawn = []
        for item, content in zip(self.step.scheduled, self.contents, strict=True):
            if item.draws:
                guide = item.sequence.guide
                forced = guide.forced if guide else None
                likely = next_token(np.uint64(content), self.runner.vocab_size)
                drawn.append(likely if forced is None else forced)
        return StubDraws(self.runner, self.step, np.array(drawn, np.int32))


@dataclass
class StubDraws:
    runner: StubRunner
    step: Step
    token_ids: Any

    def wait(self) -> list[TokenDraw]:
        self.runner.fail("wait")
        return [TokenDraw(token_id) for token_id in self.token_ids.tolist()]


def content_chain(token_ids: np.ndarray) -> np.ndarray:
    """uint64 ``[n]``: each names its token and all tokens before it."""
    chain = np.empty(len(token_ids), np.uint64)
    state = 0xCBF29CE484222325
    for index, token in enumerate(token_ids.tolist()):
        state = ((state ^ (token + 1)) * 0x100000001B3) % 2**64
        chain[index] = state
    return chain


def next_token(content: np.uint64, vocab_size: int) -> int:
    return int(content >> np.uint64(20)) % vocab_size


def expected_tokens(
    prompt: list[int], count: int, vocab_size: int, *, forces: bool = False
) -> list[int]:
    """What a sequence must draw, whatever else happens around it. With ``forces`` some prompts and
    tokens are followed by others that are not drawn."""
    tokens = [*prompt, *(forced_at_first(prompt) if forces else [])]
    while len(tokens) < len(prompt) + count:
        tokens.append(next_token(content_chain(np.array(tokens))[-1], vocab_size))
        tokens += forced_after(tokens[-1]) if forces else []
    return tokens[len(prompt) :][:count]


def forced_at_first(prompt: list[int]) -> list[int]:
    """What follows a prompt where there is a grammar: mostly nothing, at times a lot."""
    return [prompt[-1]] * (0 if len(prompt) % 3 else len(prompt) // 2)


def forced_after(token: int) -> list[int]:
    """What follows a drawn token where there is a grammar: mostly nothing, at times a lot."""
    return [token % 3] * (0 if token % 4 else token // 4)
