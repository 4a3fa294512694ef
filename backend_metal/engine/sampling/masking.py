"""Leaves those tokens of logits that may come."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
BITS = 32
FEW = 8
"""Of so many words of a mask one may leave something out, for that to be written one by one."""


@dataclass
class Masks:
    """Which tokens may come, of those rows of logits of which not every one may. Those of the next
    step may be the same ones, so what is made of them is kept."""

    rows: Ints
    """``[n]``, ascending."""
    words: Ints
    """``[n, ceil(vocab_size / 32)]``, a bit for each token that may come, from the lowest."""
    _few: tuple[tuple[int, ...], mx.array | None] | None = field(default=None, repr=False)
    _whole: tuple[int, mx.array] | None = field(default=None, repr=False)

    def few_left_out(self, shape: tuple[int, ...]) -> mx.array | None:
        """``row * vocab_size + token_id`` of every token of logits of such a shape that may not
        come; None: there are many."""
        if self._few is None or self._few[0] != shape:
            flat = _left_out(self, shape)
            self._few = shape, None if flat is None else mx.array(flat)
        return self._few[1]

    def whole(self, num_rows: int) -> mx.array:
        """As ``words``, of so many rows."""
        if self._whole is None or self._whole[0] != num_rows:
            words = mx.array(self.words)
            if len(self.rows) < num_rows:
                # Those without a mask have one of ones, which the device writes.
                ones = mx.full((num_rows, words.shape[1]), -1, mx.int32)
                words = mx.put_along_axis(ones, mx.array(self.rows)[:, None], words, axis=0)
            self._whole = num_rows, words
        return self._whole[1]


def leave_allowed(logits: mx.array, masks: Masks) -> mx.array:
    """Minus infinity where a mask has no bit. ``logits`` is float32 ``[rows, vocab_size]``."""
    # A GPU selects in no time; MLX's CPU, on one thread, takes as long as for an argmax. Where an
    # answer is free but for calls, a few hundred tokens are left out.
    if _is_cpu() and (few := masks.few_left_out(logits.shape)) is not None:
        return _leave_out(logits, few)
    words = masks.whole(logits.shape[0])
    if logits.shape[1] % BITS or _is_cpu():
        return _select(logits, words)
    return _select_whole_words(logits, words)


def _is_cpu() -> bool:
    return mx.default_device() == mx.cpu


def _left_out(masks: Masks, shape: tuple[int, ...]) -> Ints | None:
    """``row * vocab_size + token_id`` of every token without a bit; None: there are many."""
    vocab_size = shape[1]
    words = np.flatnonzero(~masks.words)
    if len(words) * FEW > shape[0] * masks.words.shape[1]:
        return None
    bits = np.unpackbits((~masks.words.ravel()[words]).view(np.uint8), bitorder="little")
    ones = np.flatnonzero(bits)
    indices, columns = np.divmod(words[ones // BITS], masks.words.shape[1])
    token_ids = columns * BITS + ones % BITS
    inside = token_ids < vocab_size
    flat: Ints = (masks.rows[indices] * vocab_size + token_ids)[inside].astype(np.int32)
    return flat


def _leave_out(logits: mx.array, flat_indices: mx.array) -> mx.array:
    if not flat_indices.size:
        return logits
    flat = logits.reshape(-1)
    return mx.put_along_axis(flat, flat_indices, mx.array(-mx.inf), axis=0).reshape(logits.shape)


@mx.compile
def _select(logits: mx.array, words: mx.array) -> mx.array:
    bits = (words[:, :, None] >> mx.arange(BITS)) & 1
    allowed = bits.reshape(logits.shape[0], -1)[:, : logits.shape[1]] != 0
    return mx.where(allowed, logits, -mx.inf)


@mx.compile
def _select_whole_words(logits: mx.array, words: mx.array) -> mx.array:
    """One kernel, without the bits in between; a CPU is slow at its three dimensions."""
    bits = (words[:, :, None] >> mx.arange(BITS)) & 1
    by_word = logits.reshape(logits.shape[0], -1, BITS)
    return mx.where(bits != 0, by_word, -mx.inf).reshape(logits.shape)
