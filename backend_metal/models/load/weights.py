"""Bringing lazily loaded weights into memory in the form that suits the device."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.afm7 import FusedLinear, FusedQuantizedLinear
from mlx_lm.models.mla import MultiLinear, QuantizedMultiLinear
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from backend_metal.devices.cpu.half_experts import keep_experts_float
from backend_metal.devices.cpu.quantized import can_stay_quantized, keep_quantized
from backend_metal.models.load.progress import Progress

logger = logging.getLogger(__name__)

QUANTIZED = (nn.QuantizedLinear, nn.QuantizedEmbedding, QuantizedSwitchLinear, QuantizedMultiLinear)
HALVES = ("float16", "bfloat16")
DEQUANTIZED_SHARE = 0.9
"""Most of the memory that dequantized weights may take; the rest is for the KV cache."""


def materialize(
    model: nn.Module, *, dtype: mx.Dtype | None, on_cpu: bool, memory_limit_bytes: int
) -> int:
    """``convert``, and evaluate; returns their bytes. Raises what ``convert`` does, and
    ``ValueError`` naming a weight that holds NaN."""
    total_bytes = convert(model, dtype=dtype, on_cpu=on_cpu, memory_limit_bytes=memory_limit_bytes)
    _evaluate(model, total_bytes)
    return total_bytes


def convert(
    model: nn.Module, *, dtype: mx.Dtype | None, on_cpu: bool, memory_limit_bytes: int
) -> int:
    """Cast, and give quantized layers the form that runs best, all of it lazily; returns the bytes
    that the weights take once they are evaluated.

    Args:
        model: as mlx-lm loads it lazily; its layers are replaced where they are dequantized.
        dtype: of every floating parameter, None: as stored.
        on_cpu: quantized layers that this package has no kernel for become ``dtype`` ones, if that
            fits; experts float32 ones.

    Raises:
        ValueError: with the figures, when the weights don't fit ``memory_limit_bytes``.
    """
    layers = dict(_quantized_layers(model))
    native = {
        name: layer
        for name, layer in layers.items()
        if on_cpu and dtype == mx.float32 and can_stay_quantized(layer)
    }
    if dtype is not None:
        _cast(model, dtype, excepted=frozenset(native))
    for name, layer in native.items():
        keep_quantized(layer)
        del layers[name]
    if on_cpu and layers:
        dense_bytes = _nbytes(model) + sum(
            _dense_nbytes(layer, dtype) - _nbytes(layer) for layer in layers.values()
        )
        if dense_bytes <= memory_limit_bytes * DEQUANTIZED_SHARE:
            _dequantize(model, layers, dtype)
        else:
            logger.warning(
                "keeping weights quantized whose format has no kernel for the CPU: dequantized, "
                "all weights would take %s of %s. Products with them run about 50 times slower",
                readable_bytes(dense_bytes),
                readable_bytes(memory_limit_bytes),
            )
    if on_cpu and dtype in (mx.float16, mx.bfloat16):
        keep_experts_float(model)
    total_bytes = _nbytes(model)
    _check_fits(total_bytes, memory_limit_bytes)
    return total_bytes


def check_stored_weights(path: Path, *, dtype: str, memory_limit_bytes: int) -> None:
    """Raises ``ValueError`` when the weights in ``path`` can't fit, whatever ``materialize`` makes
    of them: only a cast to 16 bits makes them smaller."""
    stored_bytes = sum(file.stat().st_size for file in path.glob("model*.safetensors"))
    _check_fits(stored_bytes // (2 if dtype in HALVES else 1), memory_limit_bytes)


def _check_fits(weight_bytes: int, memory_limit_bytes: int) -> None:
    if weight_bytes > memory_limit_bytes:
        raise ValueError(
            f"the weights take {readable_bytes(weight_bytes)}, more than the "
            f"{readable_bytes(memory_limit_bytes)} that may be used: raise memory_fraction, or "
            "serve a smaller or more strongly quantized model"
        )


def readable_bytes(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


def _cast(model: nn.Module, dtype: mx.Dtype, excepted: frozenset[str]) -> None:
    """``excepted``: layers whose scales stay as stored."""
    may_cast = getattr(model, "cast_predicate", lambda _: True)
    stay = {f"{layer}.{scale}" for layer in excepted for scale in ("scales", "biases")}
    cast = [
        (name, array.astype(dtype))
        for name, array in tree_flatten(model.parameters())
        if mx.issubdtype(array.dtype, mx.floating) and may_cast(name) and name not in stay
    ]
    model.update(tree_unflatten(cast))


def _dequantize(model: nn.Module, layers: Mapping[str, nn.Module], dtype: mx.Dtype | None) -> None:
    dense = [(name, _dense(layer, dtype)) for name, layer in layers.items()]
    model.update_modules(tree_unflatten(dense))


def _dense(layer: nn.Module, dtype: mx.Dtype | None) -> nn.Module:
    has_bias = "bias" in layer
    if isinstance(layer, FusedQuantizedLinear):
        dense = FusedLinear(1, layer.output_dims)
    elif isinstance(layer, nn.QuantizedLinear):
        dense = nn.Linear(1, 1, bias=has_bias)
    elif isinstance(layer, nn.QuantizedEmbedding):
        dense = nn.Embedding(1, 1)
    elif isinstance(layer, QuantizedMultiLinear):
        dense = MultiLinear(1, 1, 1)
    else:
        dense = SwitchLinear(1, 1, 1, bias=has_bias)
        # Only on a CPU anything is dequantized, which has no experts in half precision.
        dtype = dtype and mx.float32
    dense.weight = mx.dequantize(
        layer.weight,
        layer.scales,
        layer.get("biases"),
        group_size=layer.group_size,
        bits=layer.bits,
        mode=layer.mode,
        global_scale=layer.get("global_scale"),
        dtype=dtype,
    )
    if has_bias:
        dense.bias = layer.bias
    return dense


def _dense_nbytes(layer: nn.Module, dtype: mx.Dtype | None) -> int:
    return _nbytes(_dense(layer, dtype))


def _evaluate(model: nn.Module, total_bytes: int) -> None:
    """One module at a time, so that what is cast or dequantized frees its source soon."""
    progress = Progress(total=total_bytes, unit="B", unit_scale=True, desc="loading weights")
    with progress:
        for name, module in model.named_modules():
            # Private arrays, such as rotary frequencies, are no parameters; they too must be
            # evaluated here, because no other thread can evaluate this thread's graphs.
            arrays = [array for _, array in tree_flatten(_own_arrays(module))]
            mx.eval(arrays)
            public = _own_arrays(module, public=True)
            _check_numbers(name, public)
            progress.update(sum(int(array.nbytes) for _, array in tree_flatten(public)))
    mx.eval(model.parameters())


def _check_numbers(module_name: str, arrays: Mapping[str, mx.array]) -> None:
    """Every answer of a model with one NaN is NaN, and so noise."""
    has_nan = {
        name: mx.any(mx.isnan(array))
        for name, array in arrays.items()
        if mx.issubdtype(array.dtype, mx.floating)
    }
    mx.eval(has_nan)
    for name, found in has_nan.items():
        if found.item():
            raise ValueError(
                f"the weight {module_name}.{name} holds NaN: the checkpoint is damaged, or too "
                "large for its dtype"
            )


def _own_arrays(module: nn.Module, public: bool = False) -> dict[str, mx.array]:
    return {
        name: value
        for name, value in module.items()
        if isinstance(value, mx.array) and not (public and name.startswith("_"))
    }


def _quantized_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, QUANTIZED))


def _nbytes(module: nn.Module) -> int:
    return sum(int(array.nbytes) for _, array in tree_flatten(module.parameters()))
