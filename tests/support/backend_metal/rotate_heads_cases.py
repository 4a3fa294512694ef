"""Random heads, normalised and rotated by an operator, and held to float64 and to MLX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from hypothesis import strategies as st

from backend_metal.devices.rotate_heads import RotateHeads
from backend_metal.models.layers.rotary import Rotary, rotated
from tests.support.backend_metal.dense import mixed_batches, mixed_batches_dense, worst_error
from tests.support.backend_metal.packed_step import relative_rms

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
ELEMENT_TOLERANCES = {mx.float32: 3e-4, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}
"""Most that one element is off, over the largest of its head: angles are of float32, and an element
is rounded up to three times."""
MLX_TOLERANCES = {mx.float32: 1e-4, mx.float16: 1e-3, mx.bfloat16: 8e-3}
EPSILON = 1e-5
# Where a float32 of an angle is exact to some 1e-4.
MAX_POSITION = 1000


@dataclass(frozen=True)
class Case:
    tokens: int
    heads: tuple[int, int]
    head_dim: int
    dims: int
    traditional: bool
    has_norm: bool
    has_frequencies: bool
    scale: float
    layout: str
    """``joined``: parts of one product's rows; ``strided``: elements that are not neighbours."""
    dtype: mx.Dtype
    seed: int


# Qwen3's heads, and enough tokens that a simdgroup rotates several of their heads.
MANY = Case(
    tokens=900,
    heads=(5, 2),
    head_dim=128,
    dims=128,
    traditional=False,
    has_norm=True,
    has_frequencies=False,
    scale=1.0,
    layout="joined",
    dtype=mx.bfloat16,
    seed=1,
)

# So many heads that a warp rotates several one after another on CUDA, too, and passes from queries
# to keys meanwhile; and those of dims that are not four pairs for each of so many lanes.
SEVERAL = replace(MANY, tokens=700, heads=(37, 8))
UNEVEN = replace(SEVERAL, head_dim=96, dims=96)


@st.composite
def cases(draw: st.DrawFn, most_tokens: int = 9) -> Case:
    head_dim = 2 * draw(st.one_of(st.integers(1, 40), st.sampled_from([48, 64, 96, 128, 256])))
    dims = draw(st.one_of(st.just(head_dim), st.integers(1, head_dim // 2).map(lambda n: 2 * n)))
    return Case(
        tokens=draw(st.integers(1, most_tokens)),
        heads=(draw(st.integers(1, 7)), draw(st.integers(1, 3))),
        head_dim=head_dim,
        dims=dims,
        traditional=draw(st.booleans()),
        has_norm=draw(st.booleans()),
        has_frequencies=draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 0.25])),
        layout=draw(st.sampled_from(["joined", "strided", "contiguous"])),
        dtype=draw(st.sampled_from(DTYPES)),
        seed=draw(st.integers(0, 2**16)),
    )


def check(rotate: RotateHeads, case: Case, *, is_exact: bool = True) -> None:
    """``is_exact``: whether sines and cosines are; where they are a GPU's, results are held to
    those of MLX there alone."""
    rng = np.random.default_rng(case.seed)
    inputs = _inputs(rng, case)
    positions = rng.integers(0, MAX_POSITION, case.tokens)
    weights = None
    if case.has_norm:
        q_weight, k_weight = (
            mx.array(rng.uniform(0.5, 2, case.head_dim), case.dtype) for _ in range(2)
        )
        weights = q_weight, k_weight
    rotary = Rotary(case.dims, case.traditional, float(rng.choice([1e4, 1e6])), case.scale)
    if case.has_frequencies:
        periods = rng.uniform(1, 1000, case.dims // 2)
        periods[rng.random(case.dims // 2) < 0.2] = np.inf
        frequencies = mx.array(periods, mx.float32)
        rotary = Rotary(case.dims, case.traditional, scale=case.scale, frequencies=frequencies)
    places = mx.array(positions, mx.int32)
    outputs = rotated(rotate, rotary, *inputs, places, weights, EPSILON)
    assert outputs is not None
    for x, out, weight in zip(inputs, outputs, weights or (None, None), strict=True):
        assert (out.dtype, out.shape) == (x.dtype, x.shape)
        got = np.array(out.astype(mx.float32)).astype(np.float64)
        if is_exact:
            want = _float64(x, weight, rotary, positions)
            largest = np.abs(want).max(axis=-1, keepdims=True)
            assert (np.abs(got - want) / largest).max() <= ELEMENT_TOLERANCES[case.dtype]
        # MLX's own on a CPU rounds sines and cosines.
        if not is_exact or case.dtype == mx.float32:
            same = np.array(_by_mlx(x, weight, rotary, places).astype(mx.float32))
            assert relative_rms(got, same) <= MLX_TOLERANCES[case.dtype]


def error_of_model(network: nn.Module, config: Mapping[str, Any], rotate: RotateHeads) -> float:
    """The relative RMS of a model's logits whose heads go through ``rotate``."""
    expected = mixed_batches_dense(network)
    _, actual = mixed_batches(network, config, rotate=rotate)
    return worst_error(actual, expected)


def _inputs(rng: np.random.Generator, case: Case) -> tuple[mx.array, mx.array]:
    num_heads = sum(case.heads)
    if case.layout == "strided":
        rows = mx.array(rng.standard_normal((num_heads, case.head_dim, case.tokens)), case.dtype)
        whole = rows.transpose(2, 0, 1)
        return whole[:, : case.heads[0]], whole[:, case.heads[0] :]
    # The values are behind them.
    sizes = [heads * case.head_dim for heads in (*case.heads, case.heads[1])]
    rows = mx.array(rng.standard_normal((case.tokens, sum(sizes))), case.dtype)
    parts = mx.split(rows, np.cumsum(sizes)[:-1].tolist(), axis=-1)[:2]
    if case.layout == "contiguous":
        parts = [mx.contiguous(part) for part in parts]
    q, k = (
        part.reshape(case.tokens, heads, case.head_dim)
        for part, heads in zip(parts, case.heads, strict=True)
    )
    return q, k


def _float64(
    x: mx.array, weight: mx.array | None, rotary: Rotary, positions: np.ndarray
) -> np.ndarray:
    """As MLX rounds: what a norm has before and after its weight, and the result."""
    rows = np.array(x.astype(mx.float32)).astype(np.float64)
    if weight is not None:
        mean = np.mean(rows**2, axis=-1, keepdims=True)
        rows = _rounded(rows / np.sqrt(mean + EPSILON), x.dtype)
        rows = _rounded(rows * np.array(weight.astype(mx.float32)), x.dtype)
    half = rotary.dims // 2
    if rotary.frequencies is None:
        periods = rotary.base ** (np.arange(half) / half)
    else:
        periods = np.array(rotary.frequencies).astype(np.float64)
    angles = (positions * rotary.scale)[:, None, None] / periods
    cosines, sines = np.cos(angles), np.sin(angles)
    out = rows.copy()
    if rotary.traditional:
        first, second = slice(0, rotary.dims, 2), slice(1, rotary.dims, 2)
    else:
        first, second = slice(0, half), slice(half, rotary.dims)
    out[..., first] = rows[..., first] * cosines - rows[..., second] * sines
    out[..., second] = rows[..., first] * sines + rows[..., second] * cosines
    return _rounded(out, x.dtype)


def _rounded(rows: np.ndarray, dtype: mx.Dtype) -> np.ndarray:
    return np.array(mx.array(rows, mx.float32).astype(dtype).astype(mx.float32)).astype(np.float64)


def _by_mlx(x: mx.array, weight: mx.array | None, rotary: Rotary, positions: mx.array) -> mx.array:
    normed = x if weight is None else mx.fast.rms_norm(x, weight, EPSILON)
    out = mx.fast.rope(
        normed[:, :, None],
        rotary.dims,
        traditional=rotary.traditional,
        base=None if rotary.frequencies is not None else rotary.base,
        scale=rotary.scale,
        offset=positions,
        freqs=rotary.frequencies,
    )
    return out.squeeze(2)
