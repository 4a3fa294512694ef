"""Products with quantized matrices: of few rows by a kernel that unpacks weights on their
way, and of many with the whole matrix unpacked first.

MLX's own kernels read a matrix of 4 bits at a quarter of the memory's speed there at best (H100),
and with many rows they compute a fifth of what products of floats do.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from backend_metal.cuda.products import QuantizedProduct
from backend_metal.devices.kernel_check import is_right, relative_rms
from backend_metal.devices.recording import is_being_recorded

MOST_ROWS = 192
"""With more the matrix is unpacked, which takes an H100 as long as 210 to 310 rows take the kernel;
no other GPU was measured."""
MOST_WEIGHTS = 1 << 27
"""Unpacked at a time, of a matrix that is a vocabulary's."""
CHUNK_BITS = 512
"""Of a row, that the kernel takes at once."""
ROWS_CHECKED = (5, 12, 27)
"""One number for each kernel that there is."""
OUTPUTS_CHECKED = (64, 20_000)
"""At most. Few share their depth out among blocks, and many do not."""
TOLERANCE = 2e-2
"""Of the error, over the result: MLX may round a weight otherwise."""


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


def compute_products_by_rows(layers: Iterable[nn.Module], kernel: QuantizedProduct | None) -> None:
    """Have the quantized ones of ``layers`` do so, those of MLX's affine format. ``kernel`` is run
    here with matrices of each format, and where it is wrong MLX's serve in its place, with an error
    in the log. Subclasses keep their own ways. Idempotent."""
    by_format: dict[tuple[object, ...], list[Any]] = {}
    for layer in filter(_is_affine, layers):
        layer.__class__ = BY_ROWS[type(layer)]
        layer._kernel = None
        if _is_for_kernel(layer):
            key = layer.bits, layer.group_size, layer.scales.dtype
            by_format.setdefault(key, []).append(layer)
    if kernel is None:
        return
    for (bits, group_size, dtype), own in by_format.items():
        name = f"The kernel for matrices of {bits} bits, in groups of {group_size}, in {dtype}, is"
        if is_right(name, partial(_wrong, own, kernel)):
            for layer in own:
                layer._kernel = kernel


def _wrong(layers: list[Any], kernel: QuantizedProduct) -> str | None:
    """``layers``: of one format."""
    for layer in (layers[0], max(layers, key=lambda one: int(one.scales.shape[0]))):
        for outputs in OUTPUTS_CHECKED:
            for rows in ROWS_CHECKED:
                if not (error := _error(layer, outputs, rows, kernel)) <= TOLERANCE:
                    return f"{error:.1e}, of {rows} rows and {outputs} outputs"
    return None


def _error(layer: Any, outputs: int, rows: int, kernel: QuantizedProduct) -> float:
    """Of so many of the layer's outputs, or all that it has."""
    options = {"group_size": layer.group_size, "bits": layer.bits}
    arrays = [layer[name][:outputs] for name in ("weight", "scales", "biases")]
    mx.eval(arrays)
    x = mx.random.normal((rows, _depth(layer)), key=mx.random.key(0)).astype(arrays[1].dtype)
    return relative_rms(kernel(x, *arrays, **options), x @ mx.dequantize(*arrays, **options).T)


def _is_affine(layer: Any) -> bool:
    return type(layer) in BY_ROWS and layer.mode == "affine"


def _is_for_kernel(layer: Any) -> bool:
    return (
        layer.bits in (4, 8)
        and layer.group_size in (32, 64, 128)
        and layer.scales.dtype in (mx.float16, mx.bfloat16)
        and _depth(layer) % (CHUNK_BITS // layer.bits) == 0
    )


def _depth(layer: Any) -> int:
    return int(layer.scales.shape[-1]) * int(layer.group_size)
