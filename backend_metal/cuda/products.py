"""The operators for products of few rows with a matrix."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx


class FewRowsProduct(Protocol):
    """The kernel of a device."""

    def __call__(self, x: mx.array, weights: mx.array) -> mx.array:
        """``[..., outputs]``: ``x [..., depth]`` times the transposed ``weights [outputs, depth]``,
        both of one dtype. Raises ``ValueError`` for what it has no kernel for."""


class QuantizedProduct(Protocol):
    """The kernel of a device."""

    def __call__(
        self,
        x: mx.array,
        weights: mx.array,
        scales: mx.array,
        biases: mx.array,
        *,
        group_size: int,
        bits: int,
    ) -> mx.array:
        """``[..., outputs]``: ``x [..., depth]`` times the transposed matrix, of weights that are
        rounded to the dtype of ``x``. ``weights`` uint32 ``[outputs, depth * bits / 32]``,
        ``scales`` and ``biases`` ``[outputs, depth / group_size]`` are those of MLX's affine
        format. Raises ``ValueError`` for what it has no kernel for."""
