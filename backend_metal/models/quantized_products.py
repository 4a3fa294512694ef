"""On CUDA, products with quantized matrices: of few rows by a kernel that unpacks weights on their
way, and of many with the whole matrix unpacked first.

MLX's own kernels read a matrix of 4 bits at a quarter of the memory's speed there at best (H100),
and with many rows they compute a fifth of what products of floats do.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from backend_metal.attention.quantized_product import QuantizedProduct
from backend_metal.attention.recording import is_being_recorded
from backend_metal.models.fused_projections import joined_layers

logger = logging.getLogger(__name__)

MOST_ROWS = 128
"""With more the matrix is unpacked, which takes an H100 as long as 150 rows take the kernel; no
other GPU was measured."""
MOST_WEIGHTS = 1 << 27
"""Unpacked at a time, of a matrix that is a vocabulary's."""
CHUNK_BITS = 512
"""Of a row, that the kernel takes at once."""
ROWS_CHECKED = (5, 12, 27)
"""One number for each kernel that there is."""
OUTPUTS_CHECKED = (64, 20_000)
"""At most."""
TOLERANCE = 2e-2
"""Of the error's norm, over that of the result: MLX may round a weight otherwise."""


class _ByRows(nn.Module):  # type: ignore[misc]
    """Mixed into a layer's class."""

    _kernel: QuantizedProduct | None
    """None: it has none for this layer."""

    def product(self, x: mx.array) -> mx.array | None:
        """None: it is MLX's turn."""
        # A step that is recorded would hold all weights of the model, unpacked.
        if x.size > MOST_ROWS * x.shape[-1] and not is_being_recorded():
            return self.unpacked_product(x)
        if self._kernel is None or x.dtype != self["scales"].dtype:
            return None
        return self.kernel_product(x)

    @property
    def has_kernel(self) -> bool:
        return self._kernel is not None

    def kernel_product(self, x: mx.array) -> mx.array:
        assert self._kernel is not None
        return self._kernel(
            x,
            self["weight"],
            self["scales"],
            self["biases"],
            group_size=self.group_size,
            bits=self.bits,
        )

    def unpacked_product(self, x: mx.array) -> mx.array:
        arrays = [self["weight"], self["scales"], self["biases"]]
        ends = [*range(0, arrays[0].shape[0], max(1, MOST_WEIGHTS // x.shape[-1]))][1:]
        unpack = partial(mx.dequantize, group_size=self.group_size, bits=self.bits, dtype=x.dtype)
        if not ends:
            return x @ unpack(*arrays).T
        parts = zip(*(mx.split(array, ends) for array in arrays), strict=True)
        return mx.concatenate([x @ unpack(*part).T for part in parts], axis=-1)


class QuantizedLinearByRows(_ByRows, nn.QuantizedLinear):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        out = self.product(x)
        if out is None:
            out = super().__call__(x)
        elif "bias" in self:
            out = out + self["bias"]
        return out


class QuantizedEmbeddingByRows(_ByRows, nn.QuantizedEmbedding):  # type: ignore[misc]
    def as_linear(self, x: mx.array) -> mx.array:
        out = self.product(x)
        if out is None:
            out = super().as_linear(x)
        return out


BY_ROWS: dict[type[nn.Module], type[nn.Module]] = {
    nn.QuantizedLinear: QuantizedLinearByRows,
    nn.QuantizedEmbedding: QuantizedEmbeddingByRows,
}


def compute_products_by_rows(model: nn.Module, kernel: QuantizedProduct | None) -> None:
    """Have the quantized layers of ``model`` do so, those of MLX's affine format. ``kernel`` is run
    here with matrices of each format, and where it is wrong MLX's serve in its place, with an error
    in the log. Subclasses keep their own ways. Idempotent."""
    by_format: dict[tuple[object, ...], list[Any]] = {}
    for layer in _quantized_layers(model):
        layer.__class__ = BY_ROWS[type(layer)]
        layer._kernel = None
        if _is_for_kernel(layer):
            key = layer.bits, layer.group_size, layer.scales.dtype
            by_format.setdefault(key, []).append(layer)
    for layers in by_format.values():
        if kernel is not None and _is_right(layers, kernel):
            for layer in layers:
                layer._kernel = kernel


def _what_is_wrong(layer: Any, outputs: int, kernel: QuantizedProduct) -> str | None:
    """Of the first so many outputs of a layer."""
    options = {"group_size": layer.group_size, "bits": layer.bits}
    arrays = [layer[name][:outputs] for name in ("weight", "scales", "biases")]
    mx.eval(arrays)
    matrix = mx.dequantize(*arrays, **options).T
    for rows in ROWS_CHECKED:
        x = mx.random.normal((rows, _depth(layer)), key=mx.random.key(0)).astype(matrix.dtype)
        want = (x @ matrix).astype(mx.float32)
        error = kernel(x, *arrays, **options).astype(mx.float32) - want
        found, allowed = (float(np.array(mx.linalg.norm(array))) for array in (error, want))
        # Written so that NaN fails too.
        if not found <= TOLERANCE * allowed:
            return f"an error of {found} of {allowed}, of {rows} rows and {outputs} outputs"
    return None


def _quantized_layers(model: nn.Module) -> Iterator[Any]:
    for layer in [*(whole for whole, _ in joined_layers(model)), *model.modules()]:
        if type(layer) in BY_ROWS and layer.mode == "affine":
            yield layer


def _is_for_kernel(layer: Any) -> bool:
    return (
        layer.bits in (4, 8)
        and layer.group_size in (32, 64, 128)
        and layer.scales.dtype in (mx.float16, mx.bfloat16)
        and _depth(layer) % (CHUNK_BITS // layer.bits) == 0
    )


def _depth(layer: Any) -> int:
    return int(layer.scales.shape[-1]) * int(layer.group_size)


def _is_right(layers: list[Any], kernel: QuantizedProduct) -> bool:
    """``layers``: of one format."""
    layer = layers[0]
    # Few outputs share their depth out among blocks, and many do not.
    largest = max(layers, key=lambda one: int(one.scales.shape[0]))
    try:
        wrong = None
        for one in (layer, largest):
            for outputs in OUTPUTS_CHECKED:
                wrong = wrong or _what_is_wrong(one, outputs, kernel)
    except (RuntimeError, ValueError) as failure:
        logger.debug("the kernel for quantized matrices did not run", exc_info=failure)
        wrong = str(failure)
        # A GPU's failure is raised once for each wait that meets it.
        with contextlib.suppress(RuntimeError):
            mx.synchronize()
    if wrong is not None:
        logger.error(
            "The kernel for quantized matrices (%s bits, groups of %s, %s) is wrong on this "
            "machine, so MLX's serves in its place, more slowly. Please send us this: %s",
            layer.bits,
            layer.group_size,
            layer.scales.dtype,
            wrong,
        )
    return wrong is None
