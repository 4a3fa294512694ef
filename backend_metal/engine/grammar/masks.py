"""Which tokens may come next of each sequence of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend_metal.engine.grammar.guide import Guide
from backend_metal.engine.grammar.matcher import GrammarMatcher
from backend_metal.engine.grammar.matcher_pool import MatcherPool
from backend_metal.engine.grammar.restrictions import TokenRestrictions
from backend_metal.engine.grammar.words import BITS, Ints

EVERYTHING = -1
"""A word of a mask that allows all of its tokens."""


@dataclass(frozen=True)
class HeldRow:
    """A row of logits of which not every token may come."""

    row: int
    guide: Guide | None
    restrictions: TokenRestrictions | None
    output: Ints
    """The tokens so far, for ``restrictions``."""

    @property
    def free_mask(self) -> Ints | None:
        """Its mask, if that is of free text and was filled before."""
        if self.guide is None or self.restrictions is not None or self.guide.forced is not None:
            return None
        return self.guide.free_mask


@dataclass(frozen=True)
class FilledMasks:
    rows: Ints
    """``[n]``, ascending."""
    words: Ints
    """``[n, ceil(vocab_size / 32)]``"""


HeldMask = tuple[int, Ints | None]
"""A row, and its mask."""


class MaskFiller:
    def __init__(self, pool: MatcherPool) -> None:
        self._pool = pool
        self._buffer = np.empty((0, 0), np.int32)
        self._free: tuple[list[HeldMask], FilledMasks] | None = None
        """The latest masks that were all of free text: mostly, the next ones are the same."""

    def fill(self, held: Sequence[HeldRow], vocab_size: int) -> FilledMasks:
        """The masks of these rows, until the next call, which may give the very same. One whose
        matcher has failed allows every token: ``advance`` tells."""
        known = [(one.row, one.free_mask) for one in held]
        if all(mask is not None for _, mask in known):
            return self._of_free_text(known)
        words = self._room(len(held), -(-vocab_size // BITS))
        alive: list[tuple[GrammarMatcher, int]] = []
        filled: list[tuple[Guide, int]] = []
        for index, one in enumerate(held):
            guide, mask = one.guide, known[index][1]
            if mask is not None:
                words[index] = mask
            elif guide is not None and (token_id := guide.forced) is not None:
                words[index] = 0
                words.view(np.uint32)[index, token_id // BITS] = 1 << token_id % BITS
            elif guide is not None and guide.matcher is not None and not guide.matcher.has_failed:
                alive.append((guide.matcher, index))
                filled.append((guide, index))
            else:
                words[index] = EVERYTHING
        self._pool.fill(alive, words)
        for guide, index in filled:
            guide.filled(words[index])
        for index, one in enumerate(held):
            if one.restrictions is not None and (one.guide is None or one.guide.forced is None):
                one.restrictions.restrict(words[index], one.output)
        return FilledMasks(np.array([one.row for one in held], np.int32), words)

    def _of_free_text(self, known: list[HeldMask]) -> FilledMasks:
        latest = self._free
        if latest is None or not _are_same(latest[0], known):
            rows = np.array([row for row, _ in known], np.int32)
            words = np.stack([mask for _, mask in known if mask is not None])
            latest = self._free = known, FilledMasks(rows, words)
        return latest[1]

    def _room(self, num_rows: int, width: int) -> Ints:
        # As large an array, if it is new, costs more than what is written to it.
        if self._buffer.shape[0] < num_rows or self._buffer.shape[1] != width:
            self._buffer = np.empty((num_rows, width), np.int32)
        return self._buffer[:num_rows]


def _are_same(some: list[HeldMask], others: list[HeldMask]) -> bool:
    """The very same masks, not only equal ones, of the same rows."""
    return len(some) == len(others) and all(
        row == its_row and mask is its_mask
        for (row, mask), (its_row, its_mask) in zip(some, others, strict=True)
    )
