"""Which tokens may come next of each sequence of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor
from llguidance.numpy import fill_next_token_bitmask_par

from backend_metal.engine.grammar.guide import Guide

BITS = 32
EVERYTHING = -1
"""A word of a mask that allows all of its tokens."""

Masks = npt.NDArray[np.int32]


class MaskFiller:
    """Fills masks in threads of its own, without Python's lock."""

    def __init__(self) -> None:
        self._executor = LLExecutor()

    def fill(self, guides: Sequence[tuple[int, Guide]], num_rows: int, vocab_size: int) -> Masks:
        """int32 ``[num_rows, ceil(vocab_size / 32)]``, a bit for each token; rows without a guide
        allow every token, as does one whose matcher has failed: ``advance`` tells."""
        masks = np.full((num_rows, -(-vocab_size // BITS)), EVERYTHING, np.int32)
        alive = []
        for row, guide in guides:
            if (token_id := guide.forced) is not None:
                masks[row] = 0
                masks.view(np.uint32)[row, token_id // BITS] = 1 << token_id % BITS
            elif guide.matcher is not None and not guide.matcher.native.is_error():
                alive.append((guide.matcher.native, row))
        if alive:
            fill_next_token_bitmask_par(self._executor, alive, masks)
        return masks
