"""Tokens that are drawn, and not read yet, in their places of the step behind."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx


class FillIn(Protocol):
    def __call__(self, token_ids: mx.array, drawn: mx.array) -> mx.array:
        """``token_ids``, int32 ``[tokens]``, with the drawn ones in place of those that are
        pending: ``-1 - row`` stands for that row of ``drawn``, int32 ``[rows]``."""


def fill_in_tokens(token_ids: mx.array, drawn: mx.array) -> mx.array:
    """A ``FillIn`` of MLX's own operators, on any device."""
    rows = mx.maximum(-1 - token_ids, 0)
    return mx.where(token_ids < 0, drawn[rows], token_ids)
