"""Operators of whole rows are run before they serve, and held to MLX's."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from backend_metal.devices.kernel_check import is_right, relative_rms
from backend_metal.devices.row_operators import RowOperators
from backend_metal.models.layers.fused_rows import FusedRMSNorm

TOLERANCES = {mx.float32: 1e-4, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}
"""Of the root mean square of the error, over that of the result: an element may be rounded to the
other neighbour, some of them twice."""
NUM_ROWS = 5
WIDTHS = (37, 1280)
"""Of activations: halves of a product that no whole vectors fit in, and of more than one block."""


def right_row_operators(
    operators: RowOperators, model: nn.Module, dtype: mx.Dtype
) -> RowOperators | None:
    """``operators``, or None if they are wrong on this machine about rows of this dtype, and as
    wide as the norms of ``model``, with an error in the log."""
    right = is_right(
        "The kernels of norms and activations are", lambda: _wrong(operators, model, dtype)
    )
    return operators if right else None


def _wrong(operators: RowOperators, model: nn.Module, dtype: mx.Dtype) -> str | None:
    norms = {
        (int(part.weight.shape[0]), float(part.eps))
        for part in model.modules()
        if isinstance(part, FusedRMSNorm)
    }
    for width, epsilon in sorted(norms):
        for got, want in _norms(operators, width, epsilon, dtype):
            if not (error := relative_rms(got, want)) <= TOLERANCES.get(dtype, 0.0):
                return f"a norm of {width} elements: {error:.1e}"
    if operators.silu_product is None:
        return None
    for width in WIDTHS:
        gate, up = mx.split(_normal(NUM_ROWS, 2 * width, dtype), 2, axis=-1)
        got, want = operators.silu_product(gate, up), nn.silu(gate) * up
        if not (error := relative_rms(got, want)) <= TOLERANCES.get(dtype, 0.0):
            return f"an activation of {width} elements: {error:.1e}"
    return None


def _norms(
    operators: RowOperators, width: int, epsilon: float, dtype: mx.Dtype
) -> Iterator[tuple[mx.array, mx.array]]:
    """Of a sum, the norm and what became of the sum: as computed, and as MLX has it."""
    rows = _normal(2 * NUM_ROWS + 1, width, dtype)
    terms, weight = (rows[:NUM_ROWS], rows[NUM_ROWS:-1]), rows[-1]
    sums = [terms[0] + terms[1] for _ in range(2)]
    yield (
        operators.rms_norm_of_sum(sums[0], weight, epsilon),
        mx.fast.rms_norm(sums[1], weight, epsilon),
    )
    yield sums[0], sums[1]


def _normal(rows: int, width: int, dtype: mx.Dtype) -> mx.array:
    return mx.array(np.random.default_rng(width).standard_normal((rows, width)), dtype)
