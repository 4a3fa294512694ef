"""Logits of the tokens that masks leave, however many they leave out, of all rows or of some."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from backend_metal.engine.sampling.masking import BITS, Masks, leave_allowed

NUM_ROWS = 5


def masked(vocab_size: int, share: float, rows: list[int]) -> tuple[Masks, np.ndarray]:
    """Masks that leave out a share of the tokens, and a boolean for each token that may come."""
    random = np.random.default_rng(vocab_size)
    width = -(-vocab_size // BITS) * BITS
    held = random.random((len(rows), width)) >= share
    # One that leaves nothing out has the bits behind the vocabulary, too.
    held[:1] = True
    words = np.packbits(held, axis=1, bitorder="little").view(np.int32)
    allowed = np.ones((NUM_ROWS, vocab_size), bool)
    allowed[rows] = held[:, :vocab_size]
    return Masks(np.array(rows, np.int32), words), allowed


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 288, 1000, 4097])
@pytest.mark.parametrize("share", [0.0, 0.002, 0.01, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [1, 4], [0, 2, 3]])
def test_what_is_left_out_is_minus_infinity_and_nothing_else_changes(
    vocab_size: int, share: float, rows: list[int]
) -> None:
    masks, allowed = masked(vocab_size, share, rows)
    logits = mx.random.normal((NUM_ROWS, vocab_size), key=mx.random.key(0))
    before = np.array(logits)
    left = np.array(leave_allowed(logits, masks))
    assert np.array_equal(left, np.where(allowed, before, -np.inf))
    assert np.array_equal(np.array(logits), before)


def test_a_mask_of_everything_leaves_the_logits_as_they_are() -> None:
    masks = Masks(np.arange(2, dtype=np.int32), np.full((2, 3), -1, np.int32))
    logits = mx.arange(2 * 70, dtype=mx.float32).reshape(2, 70)
    assert np.array_equal(np.array(leave_allowed(logits, masks)), np.array(logits))
