"""Products with quantized matrices, and what they are in float64."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st

from backend_metal.cuda.products import QuantizedProduct

PRECISION = {mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}
"""Of a rounded number, relative to it."""


@dataclass(frozen=True)
class Case:
    rows: int
    outputs: int
    chunks: int
    group_size: int
    bits: int
    dtype: mx.Dtype
    seed: int = 0

    @property
    def depth(self) -> int:
        return self.chunks * 512 // self.bits

    def quantized(self) -> list[mx.array]:
        rng = np.random.default_rng(self.seed)
        matrix = mx.array(rng.normal(size=(self.outputs, self.depth)).astype(np.float32))
        arrays = mx.quantize(matrix.astype(self.dtype), self.group_size, self.bits)
        return list(arrays)

    def x(self) -> mx.array:
        values = np.random.default_rng(self.seed + 1).normal(size=(self.rows, self.depth))
        return mx.array(values.astype(np.float32)).astype(self.dtype)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    bits = draw(st.sampled_from([4, 8]))
    group_size = draw(st.sampled_from([32, 64, 128]))
    # A group of 128 is two chunks of 8 bits.
    chunks = draw(st.integers(1, 11)) * (2 if bits == 8 and group_size == 128 else 1)
    return Case(
        draw(st.integers(1, 70)),
        draw(st.integers(1, 100)),
        chunks,
        group_size,
        bits,
        draw(st.sampled_from([mx.float16, mx.bfloat16])),
        draw(st.integers(0, 99)),
    )


def check(product: QuantizedProduct, case: Case) -> None:
    x, (weights, scales, biases) = case.x(), case.quantized()
    found = product(x, weights, scales, biases, group_size=case.group_size, bits=case.bits)
    assert found.dtype == case.dtype
    # A weight is rounded once, as the scale and the bias are wide.
    wide = [array.astype(mx.float32) for array in (scales, biases)]
    matrix = mx.dequantize(weights, *wide, case.group_size, case.bits).astype(case.dtype)
    left, right = (np.array(array.astype(mx.float32), np.float64) for array in (x, matrix))
    expected = left @ right.T
    error = np.abs(np.array(found.astype(mx.float32)) - expected)
    bound = PRECISION[case.dtype] * np.abs(expected) + 2e-6 * (np.abs(left) @ np.abs(right).T)
    assert (error <= bound).all(), (error / bound).max()
