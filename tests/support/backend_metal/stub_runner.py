"""A stand-in for the model that checks what a real one would depend on: the cache's content.

Every slot remembers which (token, all tokens before it) was written there, and a step that would
attend to a slot with any other content fails. Tokens are drawn as a hash of everything before them.
"""

from __future__ import annotations

import numpy as np

from backend_metal.engine.batch import build_batch
from backend_metal.engine.schedule.step import Step, TokenDraw


class CacheMismatchError(Exception):
    """A sequence would have attended to K/V that is not its own."""


class StubRunner:
    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 50) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.cache = np.zeros(num_blocks * block_size, np.uint64)
        self.fail_next = False

    def reset(self) -> None:
        self.cache[:] = 0

    def run(self, step: Step) -> list[TokenDraw]:
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("injected failure")
        batch = build_batch(step.scheduled, self.block_size)
        assert len(set(batch.slot_mapping)) == len(batch.slot_mapping), "two tokens, one slot"
        draws = []
        for row, item in enumerate(step.scheduled):
            tokens = batch.slot_mapping[batch.cu_seqlens_q[row] : batch.cu_seqlens_q[row + 1]]
            contents = content_chain(item.sequence.tokens.view())
            self.cache[tokens] = contents[item.start : item.start + item.num_tokens]
            if item.sequence.readout is not None:
                item.sequence.readout.add(self.cache[tokens], item.start)  # type: ignore[arg-type]
        for row, item in enumerate(step.scheduled):
            contents = content_chain(item.sequence.tokens.view())
            length = batch.seq_lens[row]
            positions = np.arange(length)
            table = batch.block_tables[row]
            slots = table[positions // self.block_size] * self.block_size
            if not np.array_equal(
                self.cache[slots + positions % self.block_size], contents[:length]
            ):
                raise CacheMismatchError(f"{item.sequence.request_id} reads foreign K/V")
            if item.samples:
                guide = item.sequence.guide
                forced = guide.forced if guide else None
                drawn = next_token(contents[-1], self.vocab_size) if forced is None else forced
                draws.append(TokenDraw(drawn))
        return draws


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
    """What a sequence must draw, whatever else happens around it. With ``forces`` some tokens are
    followed by others that are not drawn."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(next_token(content_chain(np.array(tokens))[-1], vocab_size))
        tokens += forced_after(tokens[-1]) if forces else []
    return tokens[len(prompt) :][:count]


def forced_after(token: int) -> list[int]:
    """What follows a drawn token where there is a grammar: mostly nothing, at times a lot."""
    return [token % 3] * (0 if token % 4 else token // 4)
