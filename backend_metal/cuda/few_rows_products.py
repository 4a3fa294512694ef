"""Products of few rows with matrices of floats, by a kernel that reads the matrix while
the one before it still runs, and computes the activation behind a gated product, too. Where a
token's bits may not depend on others, products of any number of rows.

cuBLAS's kernels alone are as quick, but a step of a small model takes four fifths of what it takes
with these (H100).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from backend_metal.cuda.products import FewRowsProduct
from backend_metal.devices.kernel_check import is_right, relative_rms

MOST_ROWS = 32
"""With more, cuBLAS serves, which is quicker then (H100)."""
DEPTH_MULTIPLE = 8
"""Of elements, which a copy takes at once."""
ROWS_CHECKED = (5, 12, 27)
MORE_ROWS_CHECKED = (50, 200)
"""One number for each kernel that there is: for few rows, and for any number of them."""
OUTPUTS_CHECKED = (64, 20_000)
"""At most. Few share their depth out among blocks, and many do not."""
TOLERANCE = 2e-2
"""Of the error, over the result."""


class _ByRows(nn.Module):  # type: ignore[misc]
    """Mixed into a layer's class."""

    _kernel: FewRowsProduct
    _most_rows: int

    def product(self, x: mx.array) -> mx.array | None:
        """None: it is MLX's turn."""
        weights = self["weight"]
        if x.size > self._most_rows * x.shape[-1] or x.dtype != weights.dtype:
            return None
        return self._kernel(x, weights)


class LinearByRows(_ByRows, nn.Linear):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        out = self.product(x)
        if out is None:
            out = super().__call__(x)
        elif "bias" in self:
            out = out + self["bias"]
        return out


class EmbeddingByRows(_ByRows, nn.Embedding):  # type: ignore[misc]
    def as_linear(self, x: mx.array) -> mx.array:
        out = self.product(x)
        if out is None:
            out = super().as_linear(x)
        return out


BY_ROWS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: LinearByRows,
    nn.Embedding: EmbeddingByRows,
}


def compute_few_rows(layers: Iterable[nn.Module], kernel: FewRowsProduct) -> None:
    """Have ``layers`` of floats compute few rows by ``kernel``, which is run here with some of
    them; where it is wrong MLX's serves, with an error in the log. Subclasses keep their own ways.
    Idempotent."""
    for dtype, own in _layers_by_dtype(layers).items():
        check = partial(_wrong, own, kernel, ROWS_CHECKED)
        if is_right(f"The kernel for few rows in {dtype} is", check):
            _have_compute(own, kernel, MOST_ROWS)


def compute_any_rows(layers: Iterable[nn.Module], kernel: FewRowsProduct) -> None:
    """The same of any number of rows, which ``kernel`` gives the bits that each gets alone. Raises
    ``ValueError`` where it is wrong."""
    for dtype, own in _layers_by_dtype(layers).items():
        check = partial(_wrong, own, kernel, ROWS_CHECKED + MORE_ROWS_CHECKED)
        if not is_right(f"The kernel for any number of rows in {dtype} is", check):
            raise ValueError(
                "engine.deterministic must be false on this machine: the kernel for products of "
                "any number of rows is wrong, as the log says"
            )
        _have_compute(own, kernel, sys.maxsize)


def _have_compute(layers: list[Any], kernel: FewRowsProduct, most_rows: int) -> None:
    for layer in layers:
        layer.__class__ = BY_ROWS.get(type(layer), type(layer))
        layer._kernel, layer._most_rows = kernel, most_rows


def _wrong(layers: list[Any], kernel: FewRowsProduct, numbers: Sequence[int]) -> str | None:
    for layer in (layers[0], max(layers, key=lambda one: int(one.weight.shape[0]))):
        for outputs in OUTPUTS_CHECKED:
            weights = layer.weight[:outputs]
            mx.eval(weights)
            for rows in numbers:
                x = mx.random.normal((rows, weights.shape[1]), key=mx.random.key(0))
                x = x.astype(weights.dtype)
                if not (error := relative_rms(kernel(x, weights), x @ weights.T)) <= TOLERANCE:
                    return f"{error:.1e}, of {rows} rows and {weights.shape[0]} outputs"
    return None


def _layers_by_dtype(layers: Iterable[nn.Module]) -> dict[mx.Dtype, list[Any]]:
    by_dtype: dict[mx.Dtype, list[Any]] = {}
    for layer in filter(_is_for_kernel, layers):
        by_dtype.setdefault(layer.weight.dtype, []).append(layer)
    return by_dtype


def _is_for_kernel(layer: Any) -> bool:
    return (
        type(layer) in (*BY_ROWS, *BY_ROWS.values())
        and layer.weight.dtype in (mx.float16, mx.bfloat16)
        and layer.weight.shape[1] % DEPTH_MULTIPLE == 0
    )
