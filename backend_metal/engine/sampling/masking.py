"""Leaves those tokens of logits that may come."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal.native import MakeArray

Ints = npt.NDArray[np.int32]
BITS = 32


@dataclass
class Masks:
    """Which tokens may come, of those rows of logits of which not every one may. Those of the next
    step may be the same ones, so what is made of them is kept."""

    rows: Ints
    """``[n]``, ascending."""
    words: Ints
    """``[n, ceil(vocab_size / 32)]``, a bit for each token that may come, from the lowest."""
    _array: mx.array | None = field(default=None, repr=False)
    _whole: tuple[int, mx.array] | None = field(default=None, repr=False)

    def array(self, make: MakeArray = mx.array) -> mx.array:
        """``words``, made an array once."""
        if self._array is None:
            self._array = make(self.words)
        return self._array

    def whole(self, num_rows: int) -> mx.array:
        """As ``words``, of so many rows."""
        if self._whole is None or self._whole[0] != num_rows:
            words = self.array()
            if len(self.rows) < num_rows:
                # Those without a mask have one of ones, which the device writes.
                ones = mx.full((num_rows, words.shape[1]), -1, mx.int32)
                words = mx.put_along_axis(ones, mx.array(self.rows)[:, None], words, axis=0)
            self._whole = num_rows, words
        return self._whole[1]


def leave_allowed(logits: mx.array, masks: Masks) -> mx.array:
    """Minus infinity where a mask has no bit. ``logits`` is float32 ``[rows, vocab_size]``."""
    words = masks.whole(logits.shape[0])
    if logits.shape[1] % BITS:
        return _select(logits, words)
    return _select_whole_words(logits, words)


@mx.compile
def _select(logits: mx.array, words: mx.array) -> mx.array:
    bits = (words[:, :, None] >> mx.arange(BITS)) & 1
    allowed = bits.reshape(logits.shape[0], -1)[:, : logits.shape[1]] != 0
    return mx.where(allowed, logits, -mx.inf)


@mx.compile
def _select_whole_words(logits: mx.array, words: mx.array) -> mx.array:
    """One kernel, without the bits in between."""
    bits = (words[:, :, None] >> mx.arange(BITS)) & 1
    by_word = logits.reshape(logits.shape[0], -1, BITS)
    return mx.where(bits != 0, by_word, -mx.inf).reshape(logits.shape)
