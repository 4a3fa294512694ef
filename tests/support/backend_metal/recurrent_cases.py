"""Random steps of the recurrent operators, held to float64 whatever runs them."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st

from backend_metal import native
from backend_metal.devices.base import RecurrentKernels
from backend_metal.recurrent import operators
from tests.support.backend_metal import recurrent_oracle as oracle
from tests.support.backend_metal.packed_step import relative_rms

TOLERANCES = {mx.float32: 1e-5, mx.float16: 1e-3, mx.bfloat16: 8e-3}

CONVOLUTIONS: dict[str, Any] = {
    "layout": oracle.layouts(),
    "channels": st.one_of(st.integers(1, 40), st.sampled_from([256, 300, 513])),
    "kernel": st.integers(2, 8),
    "has_bias": st.booleans(),
    "is_part": st.booleans(),
    "dtype": st.sampled_from(list(TOLERANCES)),
    "seed": st.integers(0, 2**16),
}
"""What ``check_conv`` takes, but for who computes."""


def check_conv(
    kernels: RecurrentKernels,
    layout: oracle.Layout,
    *,
    channels: int,
    kernel: int,
    has_bias: bool,
    is_part: bool,
    dtype: mx.Dtype,
    seed: int,
) -> None:
    """``is_part``: ``x`` is a part of larger rows."""
    rng = np.random.default_rng(seed)
    x = oracle.rounded(_normal(rng, layout.num_tokens, channels), dtype)
    states = oracle.rounded(_normal(rng, oracle.NUM_SLOTS, kernel - 1, channels), dtype)
    weight = _normal(rng, kernel, channels)
    bias = _normal(rng, channels) if has_bias else None
    want, want_states = oracle.conv(x, weight, bias, states, layout)
    out, after = operators.causal_conv(
        kernels,
        _rows(x, dtype, is_part),
        mx.array(weight),
        None if bias is None else mx.array(bias),
        _state_array(states, dtype),
        layout.metadata,
    )
    assert out.dtype == dtype
    assert relative_rms(np.array(out.astype(mx.float32)), want) <= TOLERANCES[dtype]
    np.testing.assert_array_equal(np.array(after.astype(mx.float32)), want_states)


def check_linear_attention(
    kernels: RecurrentKernels,
    layout: oracle.Layout,
    *,
    heads: tuple[int, int],
    dims: tuple[int, int],
    channel_gates: bool,
    delta_rule: bool,
    is_part: bool,
    dtype: mx.Dtype,
    seed: int,
    gates_are_rates: bool = False,
) -> None:
    """``heads``: key heads, and value heads of each; ``dims``: of keys and values; ``is_part``:
    ``q``, ``k`` and ``v`` are parts of larger rows; ``gates_are_rates``: if ``channel_gates``."""
    rng = np.random.default_rng(seed)
    (k_heads, group), (dim, dim_v), tokens = heads, dims, layout.num_tokens
    v_heads = k_heads * group
    q, k = (oracle.rounded(_normal(rng, tokens, k_heads, dim) / dim**0.5, dtype) for _ in range(2))
    v = oracle.rounded(_normal(rng, tokens, v_heads, dim_v), dtype)
    gate_shape = (tokens, v_heads, dim) if channel_gates else (tokens, v_heads)
    gates = rng.uniform(0.5, 1, gate_shape).astype(np.float32)
    betas = rng.uniform(0, 1, (tokens, v_heads)).astype(np.float32)
    rates = -rng.uniform(0, 2, (v_heads, dim)).astype(np.float32)
    gates_are_rates &= channel_gates
    if gates_are_rates:
        gates = np.exp(betas[..., None].astype(np.float64) * rates)
    states = _normal(rng, oracle.NUM_SLOTS, v_heads, dim_v, dim)
    want, want_states = oracle.linear_attention(
        q, k, v, gates, betas, states, layout, delta_rule=delta_rule
    )
    out, after = operators.linear_attention(
        kernels,
        *(_rows(part, dtype, is_part) for part in (q, k, v)),
        mx.array(rates if gates_are_rates else gates),
        mx.array(betas),
        _state_array(states, mx.float32),
        layout.metadata,
        delta_rule=delta_rule,
        gates_are_rates=gates_are_rates,
    )
    assert out.dtype == dtype
    assert relative_rms(np.array(out.astype(mx.float32)), want) <= TOLERANCES[dtype]
    assert relative_rms(np.array(after), want_states) <= 1e-5
    # Slots that nobody writes keep every bit.
    kept = [slot for slot in range(oracle.NUM_SLOTS) if slot not in layout.writes]
    np.testing.assert_array_equal(np.array(after)[kept], states[kept])


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _state_array(states: np.ndarray, dtype: mx.Dtype) -> mx.array:
    array = native.zeros(states.shape, dtype)
    array[:] = mx.array(states).astype(dtype)
    mx.eval(array)
    return array


def _rows(x: np.ndarray, dtype: mx.Dtype, is_part: bool) -> mx.array:
    if not is_part:
        return mx.array(x).astype(dtype)
    whole = mx.concatenate([mx.array(x), mx.ones_like(mx.array(x))], axis=-1).astype(dtype)
    mx.eval(whole)
    return whole[..., : x.shape[-1]]
