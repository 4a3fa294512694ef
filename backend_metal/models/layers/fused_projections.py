"""Projections of one input as one product: q, k and v, and the two that a gated MLP begins with.

Each product costs its launch on a GPU and the start of its threads on a CPU, which is much of what
a step of few tokens takes. So the rows of the matrices are laid one behind another, and whichever
layer is called first computes for all; the others find theirs when they are called with the same
input. The layers stay in the model's tree, with their rows of the joined arrays as parameters,
until the joined ones are laid out anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cache
from itertools import accumulate
from operator import is_
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from backend_metal.devices.cpu.half_experts import FloatSwitchLinear
from backend_metal.devices.cpu.quantized import NativeQuantizedLinear, NativeQuantizedSwitchLinear

NAMES = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    # Latent attention.
    ("q_a_proj", "kv_a_proj_with_mqa"),
    # InternLM 2 and EXAONE.
    ("w1", "w3"),
    ("c_fc_0", "c_fc_1"),
    # Qwen3.5 and Qwen3-Next, gated delta.
    ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
    ("in_proj_qkvz", "in_proj_ba"),
    # nanochat.
    ("c_q", "c_k", "c_v"),
    # Talkie.
    ("attn_query", "attn_key", "attn_value"),
    ("mlp_gate", "mlp_linear"),
)
ROWS_AXIS = {
    nn.Linear: 0,
    nn.QuantizedLinear: 0,
    NativeQuantizedLinear: 0,
    SwitchLinear: 1,
    FloatSwitchLinear: 1,
    QuantizedSwitchLinear: 1,
    NativeQuantizedSwitchLinear: 1,
}
"""Where a layer's arrays have one row for each of its outputs. Subclasses, such as adapters, keep
their own ways."""


class _Joined:
    """One layer that computes what several do, and what of its latest product is not taken yet."""

    def __init__(self, layer: nn.Module, ends: Sequence[int]) -> None:
        """``ends``: the outputs at which another layer's begin."""
        self.layer = layer
        self._ends = list(ends)
        self._inputs: tuple[Any, ...] = ()
        self._waiting: dict[int, mx.array] = {}
        self._wasted = False

    @property
    def is_shared(self) -> bool:
        """Whether all of every product was taken."""
        return not (self._wasted or self._waiting)

    def weight_of(self, index: int) -> mx.array:
        """The weights of the layer at ``index``, of a whole one that has rows."""
        return mx.split(self.layer.weight, self._ends)[index]

    def rows_of(self, array: mx.array) -> list[mx.array]:
        """What each layer has of one of the whole's arrays."""
        return list(mx.split(array, self._ends, ROWS_AXIS[type(self.layer)]))

    def take(self, index: int, inputs: tuple[Any, ...], options: dict[str, Any]) -> mx.array:
        """The outputs of the layer at ``index``."""
        waiting = self._waiting
        if index not in waiting or not all(map(is_, inputs, self._inputs)):
            self._wasted |= bool(waiting)
            outputs = mx.split(self.layer(*inputs, **options), self._ends, axis=-1)
            self._inputs, self._waiting = inputs, dict(enumerate(outputs))
            waiting = self._waiting
        taken = waiting.pop(index)
        if not waiting:
            # Else a step's arrays would live until the next one.
            self._inputs = ()
        return taken


class _Projection:
    """Mixed into a layer's class, so that the parameter tree stays as it is."""

    _joined: _Joined
    _index: int

    def __call__(self, *inputs: Any, **options: Any) -> mx.array:
        return self._joined.take(self._index, inputs, options)

    @property
    def weight(self) -> mx.array:
        own: dict[str, mx.array] = self  # type: ignore[assignment]
        if "weight" in own:
            return own["weight"]
        # Whoever joined them has laid the weights out anew.
        return self._joined.weight_of(self._index)


def fuse_projections(model: nn.Module) -> None:
    """Join the projections of one input wherever in ``model`` there are such, all of one format.
    Idempotent. Besides ``model`` it takes the memory of one joined layer."""
    for parent in model.modules():
        for names in NAMES:
            layers = [parent.get(name) for name in names]
            if _can_join(layers):
                _join(layers)


def separate_unshared(model: nn.Module) -> None:
    """Have those layers compute alone again that turned out not to be called with one input."""
    for layer in model.modules():
        if isinstance(layer, _Projection) and not layer._joined.is_shared:
            layer.__class__ = type(layer).__bases__[1]
            del layer._joined


def joined_layers(model: nn.Module) -> list[tuple[nn.Module, list[nn.Module]]]:
    """The layers that compute for others, which are no parts of ``model``, and those others."""
    joined: dict[int, tuple[nn.Module, list[nn.Module]]] = {}
    for layer in model.modules():
        if isinstance(layer, _Projection):
            whole = layer._joined.layer
            joined.setdefault(id(whole), (whole, []))[1].append(layer)
    return list(joined.values())


def all_layers(model: nn.Module) -> list[nn.Module]:
    """Those that compute for others, and those of ``model``."""
    return [*(whole for whole, _ in joined_layers(model)), *model.modules()]


def replace_joined(parts: Sequence[Any], name: str, array: mx.array) -> None:
    """Have those that ``joined_layers`` tells of have ``array``, of their layer, in the place of
    the equal one that it has under ``name``."""
    joined: _Joined = parts[0]._joined
    joined.layer[name] = array
    rows = joined.rows_of(array)
    for part in parts:
        part[name] = rows[part._index]


def _can_join(layers: Sequence[Any]) -> bool:
    axis = ROWS_AXIS.get(type(layers[0]))
    return (
        axis is not None
        and len({type(layer) for layer in layers}) == 1
        # NVFP4's scale of a whole matrix.
        and not any("global_scale" in layer for layer in layers)
        and all(_format(layer, axis) == _format(layers[0], axis) for layer in layers)
    )


def _format(layer: nn.Module, axis: int) -> tuple[object, ...]:
    """What layers that are joined have in common: all but how many rows there are."""
    arrays = {
        name: (array.dtype, array.shape[:axis], array.shape[axis + 1 :])
        for name, array in _arrays(layer).items()
    }
    return arrays, *(getattr(layer, name, None) for name in ("mode", "bits", "group_size"))


def _arrays(layer: nn.Module) -> dict[str, mx.array]:
    return {name: value for name, value in layer.items() if isinstance(value, mx.array)}


def _join(layers: Sequence[Any]) -> None:
    first = layers[0]
    axis = ROWS_AXIS[type(first)]
    *ends, _ = accumulate(layer.weight.shape[axis] for layer in layers)
    whole = copy(first)
    for name in _arrays(first):
        whole[name] = mx.concatenate([layer[name] for layer in layers], axis)
        for layer, rows in zip(layers, mx.split(whole[name], ends, axis), strict=True):
            layer[name] = rows
    # At once, so that what was joined is given up before the next ones take memory.
    mx.eval(_arrays(whole), [_arrays(layer) for layer in layers])
    joined = _Joined(whole, ends)
    for index, layer in enumerate(layers):
        layer.__class__ = _projection_class(type(layer))  # type: ignore[arg-type]
        layer._joined, layer._index = joined, index


@cache
def _projection_class(cls: type[nn.Module]) -> type[nn.Module]:
    return type(cls.__name__, (_Projection, cls), {})
