"""Products of few rows with a matrix, and what they are in float64."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st

from backend_metal.cuda.products import FewRowsProduct

PRECISION = {mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}
"""Of a rounded number, relative to it."""


@dataclass(frozen=True)
class Case:
    rows: int
    outputs: int
    depth: int
    dtype: mx.Dtype
    seed: int = 0

    def weights(self) -> mx.array:
        return self._normal(self.outputs, self.seed)

    def x(self) -> mx.array:
        return self._normal(self.rows, self.seed + 1)

    def _normal(self, rows: int, seed: int) -> mx.array:
        values = np.random.default_rng(seed).normal(size=(rows, self.depth))
        return mx.array(values.astype(np.float32)).astype(self.dtype)


@st.composite
def cases(draw: st.DrawFn, most_rows: int = 140) -> Case:
    return Case(
        draw(st.integers(1, most_rows)),
        draw(st.integers(1, 200)),
        8 * draw(st.integers(1, 250)),
        draw(st.sampled_from([mx.float16, mx.bfloat16])),
        draw(st.integers(0, 99)),
    )


def check(product: FewRowsProduct, case: Case) -> None:
    x, weights = case.x(), case.weights()
    found = product(x, weights)
    assert found.dtype == case.dtype
    left, right = (np.array(array.astype(mx.float32), np.float64) for array in (x, weights))
    expected = left @ right.T
    error = np.abs(np.array(found.astype(mx.float32)) - expected)
    bound = PRECISION[case.dtype] * np.abs(expected) + 2e-6 * (np.abs(left) @ np.abs(right).T)
    assert (error <= bound).all(), (error / bound).max()
