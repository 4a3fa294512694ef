"""Layers whose float32 weights lie as few-row GEMMs read them (``cpu/gemm/lanes/panel_lanes.h``).

As it is stored, a matrix has each output's weights behind one another, and turning them takes as
long as reading them. These lie in panels of eight outputs, side by side, and nowhere else.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from backend_metal import native
from backend_metal.devices.cpu.blas import multiplies_rows_alike


class _Panels(nn.Module):  # type: ignore[misc]
    """Mixed into a layer's class. ``weight`` is made anew for whoever reads it, which is noted, and
    may be set: then the layer is as it was."""

    _num_outputs: int
    _is_read: bool

    @property
    def weight(self) -> mx.array:
        self._is_read = True
        panels: mx.array = self["panels"]
        depth = panels.shape[1]
        return panels.swapaxes(1, 2).reshape(-1, depth)[: self._num_outputs]

    @weight.deleter
    def weight(self) -> None:
        # As MLX does it before somebody's own weights become the layer's.
        self.pop("panels")
        self.__class__ = type(self).__bases__[1]

    def _product(self, x: mx.array) -> mx.array:
        panels: mx.array = self["panels"]
        return native.panel_product(x.astype(mx.float32), panels, self._num_outputs)


class PanelLinear(_Panels, nn.Linear):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        out = self._product(x)
        return out + self["bias"] if "bias" in self else out


class PanelEmbedding(_Panels, nn.Embedding):  # type: ignore[misc]
    """One that is the model's head, too."""

    def __call__(self, x: mx.array) -> mx.array:
        return native.panel_rows(x.astype(mx.int32), self["panels"], self._num_outputs)

    def as_linear(self, x: mx.array) -> mx.array:
        return self._product(x)


PANELED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: PanelLinear,
    nn.Embedding: PanelEmbedding,
}


def may_lie_in_panels(layer: Any) -> bool:
    """Whether it is a plain layer that this package multiplies on the CPU, with the same bits then,
    but that a bias is added last. Subclasses keep their own ways."""
    return (
        type(layer) in PANELED
        and mx.default_device() == mx.cpu
        and layer.weight.dtype == mx.float32
        and layer.weight.size > 0
        and multiplies_rows_alike()
        and native.product_kernel() is not None
    )


def lay_in_panels(layer: nn.Module) -> None:
    """Lay the weights of a layer that may so. The array that they were in is given up."""
    weight = layer.pop("weight")
    layer._num_outputs, layer._is_read = weight.shape[0], False
    layer["panels"] = native.lay_in_panels(weight)
    layer.__class__ = PANELED[type(layer)]


def is_read(layer: nn.Module) -> bool:
    """Whether somebody has read the weights of a layer in panels, rather than have it compute."""
    return isinstance(layer, _Panels) and layer._is_read


def take_out_of_panels(layer: nn.Module) -> None:
    """Have it as it was."""
    weight = mx.contiguous(layer.weight)
    mx.eval(weight)
    layer.weight = weight
