"""Steps for the native operators, and float64 answers to them, whole sequences at a time."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st

from backend_metal import native
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal.packed_step import relative_rms

DTYPES = list(oracle.TOLERANCES)
HEAD_DIMS = [(dim, dim) for dim in (64, 80, 96, 112, 128, 192, 256, 512)] + [
    (576, 512),
    (192, 128),
    (64, 128),
]
WINDOWS = st.one_of(
    st.none(), st.sampled_from([1, 7, 8, 16, 32, 33, 511, 512, 5000]), st.integers(1, 200)
)
SOFTCAPS = st.one_of(st.none(), st.floats(0.5, 50.0))
# (K/V heads, query heads of each)
HEADS = st.one_of(
    st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 4), (2, 3), (1, 8), (1, 16)]),
    st.tuples(st.integers(1, 2), st.integers(1, 16)),
)


def make_case(seed: int, heads: tuple[int, int], has_sinks: bool, **arguments: Any) -> oracle.Case:
    num_kv_heads, group = heads
    sinks = np.random.default_rng(seed).standard_normal(num_kv_heads * group).astype(np.float32)
    return oracle.make_case(
        seed,
        num_kv_heads=num_kv_heads,
        group=group,
        sinks=sinks if has_sinks else None,
        **arguments,
    )


def attention(case: oracle.Case) -> np.ndarray:
    """``[num_tokens, num_q_heads, head_dim_v]`` in float64: ``attention_oracle.attention``."""
    k_cache, v_cache = oracle.scatter(case)
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = np.zeros((*case.q.shape[:2], v_cache.shape[3]))
    for seq, seq_len in enumerate(case.seq_lens):
        start, end = case.cu_seqlens_q[seq : seq + 2]
        if start == end:
            continue
        positions = np.arange(max(seq_len, 0))
        blocks = case.block_tables[seq][positions // block_size]
        keys, values = (
            cache[blocks, positions % block_size].astype(np.float64).swapaxes(0, 1)
            for cache in (k_cache, v_cache)
        )
        q = case.q[start:end].astype(np.float64).swapaxes(0, 1)
        q = q.reshape(num_kv_heads, -1, *q.shape[1:])
        distance = np.arange(seq_len - (end - start), seq_len)[:, None] - positions
        visible = distance >= 0
        if (window := case.options.get("window")) is not None:
            visible &= distance < window
        # What no query sees may be NaN.
        seen = visible.any(axis=0)
        keys, values, visible = keys[:, seen], values[:, seen], visible[:, seen]
        rows = _attention(case, q, keys, values, visible)
        out[start:end] = rows.reshape(-1, end - start, rows.shape[-1]).swapaxes(0, 1)
    return out


def _attention(
    case: oracle.Case, q: np.ndarray, keys: np.ndarray, values: np.ndarray, visible: np.ndarray
) -> np.ndarray:
    scores = np.einsum("hgqd,hkd->hgqk", q, keys, optimize=True) * case.options["scale"]
    if (softcap := case.options.get("softcap")) is not None:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(visible, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    if (sinks := case.options.get("sinks")) is not None:
        sinks = sinks.astype(np.float64).reshape(*q.shape[:2], 1, 1)
        top = np.maximum(top, sinks)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks - top)
    out = np.einsum("hgqk,hkd->hgqd", weights, values, optimize=True)
    return out / np.where(total == 0, 1.0, total)


def run(case: oracle.Case, **changed: mx.array) -> list[mx.array]:
    """The fused operator's outputs, evaluated; ``changed`` replaces arguments by equal ones."""
    arrays = case.mlx() | changed
    outputs = list(native.scatter_paged_attention(**arrays, **case.mlx_options()))
    mx.eval(outputs)
    return outputs


def check(case: oracle.Case, **changed: mx.array) -> None:
    """All three operators, against float64."""
    arrays = case.mlx() | changed
    expected, written = attention(case), oracle.scatter(case)
    out, *caches = run(case, **changed)
    check_out(case, out, expected)
    check_caches(caches, written)
    # The written caches, read only: the very same.
    names = ("q", "block_tables", "seq_lens", "cu_seqlens_q")
    read = {name: arrays[name] for name in names}
    read |= dict(zip(("k_cache", "v_cache"), caches, strict=True))
    again = native.paged_attention(**read, **case.mlx_options())
    np.testing.assert_array_equal(as_numpy(again), as_numpy(out))
    fresh = case.mlx()
    names = ("k", "v", "k_cache", "v_cache", "slot_mapping")
    check_caches(native.reshape_and_cache(*(fresh[name] for name in names)), written)


def check_caches(caches: Any, written: tuple[np.ndarray, np.ndarray]) -> None:
    for cache, want in zip(caches, written, strict=True):
        np.testing.assert_array_equal(as_numpy(cache), want)


def check_out(case: oracle.Case, out: mx.array, expected: np.ndarray) -> None:
    actual = as_numpy(out)
    assert out.dtype == case.dtype
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    if expected.any():
        assert relative_rms(actual, expected) <= oracle.TOLERANCES[case.dtype]
    else:
        assert not actual.any()


def as_numpy(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))


short_spans = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([0, 1, 1]), st.integers(2, 20)),  # query tokens
        st.one_of(st.just(0), st.integers(-3, 60), st.integers(60, 140)),  # tokens before them
    ).filter(lambda span: sum(span) >= 0),
    min_size=1,
    max_size=4,
)
options = {
    "seed": st.integers(0, 2**16),
    "dtype": st.sampled_from(DTYPES),
    "heads": HEADS,
    "head_dims": st.sampled_from(HEAD_DIMS),
    "block_size": st.sampled_from([8, 16, 32]),
    "window": WINDOWS,
    "softcap": SOFTCAPS,
    "has_sinks": st.booleans(),
}
