"""MLX's kernels of the kinds that ours are made of, with something for each to do."""

from __future__ import annotations

import numpy as np

from .compare import Kernel, Launch, packed
from .elements import NAMES, Array, decode, random

SIMD = 32


def strides(array: Array) -> list[int]:
    """Of all dimensions but the last, in elements."""
    return [stride // array.itemsize for stride in array.strides[:-1]]


def softmax(dtype: str, looped: bool) -> Kernel:
    """One row a threadgroup: simd_max, simd_sum, and both again across simdgroups."""
    name = "looped" if looped else "block"
    function = "softmax_looped" if looped else "softmax_single_row"
    return Kernel(f"{name}_softmax_{dtype}", ("attention/softmax.h",), function, NAMES[dtype])


def softmax_launch(rows: Array, threads: int) -> Launch:
    count, size = rows.shape
    out = np.zeros_like(rows)
    return Launch((count, 1, 1), (threads, 1, 1), {0: rows, 1: out, 2: size}, 1)


def sdpa_vector(dtype: str, dim: int = 128) -> Kernel:
    """Decode attention: simd_sum of products, an online softmax, and a fold across simdgroups."""
    return Kernel(
        f"sdpa_vector_{NAMES[dtype]}_{dim}_{dim}",
        ("sdpa_vector.h",),
        "sdpa_vector",
        f"{NAMES[dtype]}, {dim}, {dim}",
    )


def sdpa_vector_launch(
    q: Array, k: Array, v: Array, *, causal: bool, sinks: Array | None
) -> Launch:
    """q [heads, queries, dim], k and v [K/V heads, keys, dim]."""
    heads, queries, dim = q.shape
    buffers = {
        **{0: q, 1: k, 2: v, 3: np.zeros_like(q), 4: heads // len(k), 5: k.shape[1]},
        **{6 + i: np.uint64(stride) for i, stride in enumerate(strides(k) + strides(v))},
        10: dim**-0.5,
    }
    if sinks is not None:
        buffers |= {16: sinks, 17: heads}
    constants = {20: False, 21: False, 22: causal, 23: False, 24: False, 25: sinks is not None}
    return Launch((heads, queries, 1), (1024, 1, 1), buffers, 3, constants)


def gemm(dtype: str, transposed_b: bool) -> Kernel:
    """A tiled product on simdgroup matrices, through threadgroup memory."""
    return Kernel(
        f"steel_gemm_fused_n{'t' if transposed_b else 'n'}_{dtype}_{dtype}_bm32_bn32_bk16_wm2_wn2",
        ("steel/gemm/gemm.h", "steel/gemm/kernels/steel_gemm_fused.h"),
        "gemm",
        f"{NAMES[dtype]}, 32, 32, 16, 2, 2, false, {str(transposed_b).lower()}, float",
    )


def gemm_launch(a: Array, b: Array, transposed_b: bool) -> Launch:
    """a [m, k]; b [k, n], or [n, k] where it is transposed."""
    (m, k), n = a.shape, b.shape[0 if transposed_b else 1]
    tiles_m, tiles_n = -(-m // 32), -(-n // 32)
    parameters = packed(
        *(("i4", x) for x in (m, n, k, k, b.shape[1], n, tiles_n, tiles_m)),
        *(("i8", x) for x in (0, 0, 0)),
        *(("i4", x) for x in (0, k // 16, 1)),
    )
    constants = {10: False, 100: False, 110: False}
    constants |= {200: m % 32 == 0, 201: n % 32 == 0, 202: k % 16 == 0}
    # Read, and not used: scales of a summand that this product is without.
    scales = packed(*(("i4", 0), ("i4", 0), ("i8", 0), ("f4", 1), ("f4", 0)))
    buffers = {0: a, 1: b, 3: np.zeros((m, n), a.dtype), 4: parameters, 5: scales}
    return Launch((tiles_n, tiles_m, 1), (SIMD, 2, 2), buffers, 3, constants)


def attention(dtype: str) -> Kernel:
    """Prefill attention: simdgroup matrices, and rows that lanes fold by shuffles."""
    return Kernel(
        f"steel_attention_{dtype}_bq32_bk16_bd128_bv128_wm4_wn1_maskbool_",
        ("steel/attn/kernels/steel_attention.h",),
        "attention",
        f"{NAMES[dtype]}, 32, 16, 128, 128, 4, 1, bool, float",
    )


def attention_launch(q: Array, k: Array, v: Array, *, causal: bool, sinks: Array | None) -> Launch:
    """q [heads, queries, dim], k and v [K/V heads, keys, dim]."""
    (heads, queries, dim), keys = q.shape, k.shape[1]
    out = np.zeros_like(q)
    tiles_q, tiles_k = -(-queries // 32), -(-keys // 16)
    sizes = (1, heads, dim, queries, keys, heads // len(k))
    tiles = (tiles_q, tiles_k, queries // 32, keys // 16, queries % 32, keys % 16, keys - queries)
    parameters = packed(
        *(("i4", size) for size in sizes),
        ("f4", dim**-0.5),
        *(("i4", count) for count in tiles),
        *(("i8", [array.size, *strides(array)]) for array in (q, k, v, out)),
    )
    buffers = {0: q, 1: k, 2: v, 3: out, 4: parameters}
    if sinks is not None:
        buffers[7] = sinks
    constants = {200: queries % 32 == 0, 201: keys % 16 == 0, 300: False, 301: causal}
    constants |= {302: sinks is not None, 303: False}
    return Launch((tiles_q, heads, 1), (SIMD, 4, 1), buffers, 3, constants)


GATED_DELTA_DIM = 128
GATED_DELTA_HEADS = (16, 32)  # of queries and keys, of values


def gated_delta(dtype: str) -> Kernel:
    """A recurrence over chunks of 8 tokens: matrices from memory times matrices from lanes."""
    dim, (heads, value_heads) = GATED_DELTA_DIM, GATED_DELTA_HEADS
    shape = (dim, dim, heads, value_heads, 8)
    return Kernel(
        f"gated_delta_fused_chunk_{NAMES[dtype]}_{'_'.join(map(str, shape))}",
        ("gated_delta_update.h",),
        "gated_delta_fused_chunk",
        ", ".join([NAMES[dtype], *map(str, shape)]),
        # A number there, which reads like a type where it is multiplied.
        renamed=("T",),
    )


def gated_delta_inputs(seed: int, tokens: int, dtype: str) -> list[Array]:
    """q, k [tokens, heads, dim]; v; the state [heads, dim, dim] (float32); decay g; beta."""
    dim, (heads, value_heads) = GATED_DELTA_DIM, GATED_DELTA_HEADS
    rows = np.random.default_rng(seed)
    q, k = (random(seed + i, (tokens, heads, dim), "float32") for i in range(2))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = random(seed + 2, (tokens, value_heads, dim), "float32")
    state = random(seed + 3, (value_heads, dim, dim), "float32")
    g = rows.uniform(0.8, 1.0, (tokens, value_heads)).astype(np.float32)
    beta = rows.uniform(0.2, 0.9, (tokens, value_heads)).astype(np.float32)
    return [q, k, v, state, g, beta]


def gated_delta_launch(q: Array, k: Array, v: Array, state: Array, g: Array, beta: Array) -> Launch:
    inputs = dict(enumerate((q, k, v, state, g, beta)))
    buffers = {**inputs, 6: np.zeros_like(v), 7: np.zeros_like(state), 8: len(q)}
    # Two value heads are enough to see, and a fraction of the work.
    return Launch((1, GATED_DELTA_DIM // 8 // 4, 2), (SIMD, 4, 1), buffers, 6)


def expected_gated_delta(
    q: Array, k: Array, v: Array, state: Array, g: Array, beta: Array
) -> Array:
    """In float64, token by token: S <- g S (1 - beta k k^T) + beta v k^T; y = S q."""
    q, k, v, state, g, beta = (decode(array) for array in (q, k, v, state, g, beta))
    group = v.shape[1] // q.shape[1]
    q, k = np.repeat(q, group, axis=1), np.repeat(k, group, axis=1)
    out = np.zeros_like(v)
    for t in range(len(q)):
        state = state * g[t][:, None, None]
        error = v[t] - np.einsum("hvd,hd->hv", state, k[t])
        state = state + np.einsum("hv,hd->hvd", beta[t][:, None] * error, k[t])
        out[t] = np.einsum("hvd,hd->hv", state, q[t])
    return out


def expected_attention(q: Array, k: Array, v: Array, *, causal: bool, sinks: Array | None) -> Array:
    """In float64."""
    q, k, v = decode(q), decode(k), decode(v)
    group = len(q) // len(k)
    k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
    scores = q @ k.swapaxes(1, 2) * q.shape[-1] ** -0.5
    if causal:
        ahead = np.arange(k.shape[1]) - np.arange(q.shape[1])[:, None] > k.shape[1] - q.shape[1]
        scores = np.where(ahead, -np.inf, scores)
    weights = np.exp(scores)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(decode(sinks))[:, None, None]
    return weights @ v / total
