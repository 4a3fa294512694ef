"""Kernels are run before they serve, on the machine that they serve on, and held to float64."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from backend_metal.device import REFERENCE, Device, device_for
from backend_metal.devices.base import RecurrentKernels
from backend_metal.recurrent import operators, reference
from backend_metal.recurrent.metadata import StateMetadata
from backend_metal.recurrent.specs import RecurrentSpec, StateArray

logger = logging.getLogger(__name__)

TOLERANCES = {mx.float32: 1e-5, mx.float16: 1e-3, mx.bfloat16: 8e-3}
"""Of the root mean square of the error, over that of the result."""
READS, WRITES, BORDERS = [3, -1, 3, 2], [0, 1, 4, 2], [0, 1, 20, 22, 23]
"""Decodes, a prefill from nothing, and two sequences that go on from one snapshot."""
NUM_SLOTS = 5


def choose_path(
    specs: Sequence[RecurrentSpec], dtype: mx.Dtype, path: Device | str | None = None
) -> Device:
    """``path``, by default that of MLX's default device, where its kernels are right about these
    layers; else the reference path, with a warning. ``dtype``: of the model."""
    chosen = device_for(path)
    for spec in dict.fromkeys(specs):
        kernels = chosen.recurrent
        if kernels is None or not spec.is_updated_by(kernels):
            continue
        if wrong := _wrong(kernels, spec, dtype):
            logger.warning(
                "recurrent layers run by mlx-lm's modules, which is slower: the %s kernels are "
                "wrong about %s",
                chosen.attention,
                wrong,
            )
            return REFERENCE
    return chosen


def _wrong(kernels: RecurrentKernels, spec: RecurrentSpec, dtype: mx.Dtype) -> str | None:
    for array in dict.fromkeys(spec.arrays):
        errors = _conv_errors(kernels, array) if array.is_inputs else _errors(kernels, array, dtype)
        for name, error, most in errors:
            if not error <= most:
                return f"{name} for state of {array.shape}: {error:.1e}, not {most:.0e}"
    return None


def _conv_errors(kernels: RecurrentKernels, array: StateArray) -> list[tuple[str, float, float]]:
    kept, channels = array.shape
    rng = np.random.default_rng(1)
    x, states = (
        mx.array(rng.standard_normal(shape), array.dtype)
        for shape in ((BORDERS[-1], channels), (NUM_SLOTS, kept, channels))
    )
    weight, bias = (
        mx.array(rng.standard_normal(shape), mx.float32)
        for shape in ((kept + 1, channels), (channels,))
    )
    want = reference.causal_conv(
        _floats(x), _floats(weight), _floats(bias), _floats(states), READS, WRITES, BORDERS
    )
    got = operators.causal_conv(kernels, x, weight, bias, states, _metadata())
    most = TOLERANCES[array.dtype]
    return [
        ("a convolution", _error(got[0], want[0]), most),
        ("a convolution's state", _error(got[1], want[1]), 0.0),
    ]


def _errors(
    kernels: RecurrentKernels, array: StateArray, dtype: mx.Dtype
) -> list[tuple[str, float, float]]:
    heads, dim_v, dim = array.shape
    # Channels that are heads share a key.
    k_heads = 1 if dim_v == 1 else heads
    tokens, rng = BORDERS[-1], np.random.default_rng(2)
    errors: list[tuple[str, float, float]] = []
    for delta_rule in (True, False):
        for gate_shape, gates_are_rates in (
            ((tokens, heads), False),
            ((tokens, heads, dim), False),
            ((heads, dim), True),
        ):
            q, k = (
                mx.array(rng.standard_normal((tokens, k_heads, dim)) / dim**0.5, dtype)
                for _ in range(2)
            )
            v = mx.array(rng.standard_normal((tokens, heads, dim_v)), dtype)
            gates, betas = (
                mx.array(rng.uniform(0.5, 1, shape), mx.float32)
                for shape in (gate_shape, (tokens, heads))
            )
            if gates_are_rates:
                gates = -gates
            states = mx.array(rng.standard_normal((NUM_SLOTS, *array.shape)), mx.float32)
            want = reference.linear_attention(
                _floats(q),
                _floats(k),
                _floats(v),
                _floats(gates),
                _floats(betas),
                _floats(states),
                READS,
                WRITES,
                BORDERS,
                delta_rule=delta_rule,
                gates_are_rates=gates_are_rates,
            )
            got = operators.linear_attention(
                kernels,
                q,
                k,
                v,
                gates,
                betas,
                states,
                _metadata(),
                delta_rule=delta_rule,
                gates_are_rates=gates_are_rates,
            )
            errors.append(("linear attention", _error(got[0], want[0]), TOLERANCES[dtype]))
            errors.append(("linear attention's state", _error(got[1], want[1]), 1e-5))
    return errors


def _metadata() -> StateMetadata:
    return StateMetadata.of(*(np.array(part, np.int32) for part in (READS, WRITES, BORDERS)))


def _floats(array: mx.array) -> reference.Floats:
    # A copy: kernels write states where they are.
    return np.array(array.astype(mx.float32)).astype(np.float64)


def _error(got: mx.array, want: reference.Floats) -> float:
    error = _floats(got) - want
    return float(np.sqrt(np.mean(error**2)) / np.sqrt(np.mean(want**2)))
