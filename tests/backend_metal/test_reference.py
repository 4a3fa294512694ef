"""The plain-MLX operators against attention written out in float64."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.devices import reference
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal.packed_step import relative_rms
from tests.support.fuzzing import fuzz

DTYPES = list(oracle.TOLERANCES)
FUZZ = fuzz(200)

spans = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([0, 1]), st.integers(2, 24)),  # query tokens
        st.one_of(st.just(0), st.integers(0, 60)),  # tokens before them
    ),
    min_size=1,
    max_size=6,
)


def check(case: oracle.Case, **changed: mx.array) -> None:
    """All three operators, against the oracle; ``changed`` replaces arguments by equal ones."""
    arrays = case.mlx() | changed
    k_cache, v_cache = oracle.scatter(case)
    expected = oracle.attention(case, k_cache, v_cache)
    out, *caches = reference.scatter_paged_attention(**arrays, **case.mlx_options())
    mx.eval(out, caches)
    assert out.dtype == case.dtype
    for cache, want in zip(caches, (k_cache, v_cache), strict=True):
        np.testing.assert_array_equal(as_numpy(cache), want)
    check_out(case, out, expected)
    # The written caches, read only: the same again.
    names = ("q", "block_tables", "seq_lens", "cu_seqlens_q")
    read = {name: arrays[name] for name in names}
    read |= {"k_cache": mx.array(k_cache, case.dtype), "v_cache": mx.array(v_cache, case.dtype)}
    check_out(case, reference.paged_attention(**read, **case.mlx_options()), expected)


def check_out(case: oracle.Case, out: mx.array, expected: np.ndarray) -> None:
    actual = as_numpy(out)
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    if expected.any():
        assert relative_rms(actual, expected) <= oracle.TOLERANCES[case.dtype]
    else:
        assert not actual.any()


def as_numpy(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))


@FUZZ
@given(
    seed=st.integers(0, 2**16),
    dtype=st.sampled_from(DTYPES),
    spans=spans,
    heads=st.sampled_from([(1, 1), (2, 2), (4, 1), (8, 2), (16, 1)]),
    head_dims=st.sampled_from([(64, 64), (80, 80), (128, 64), (192, 128), (64, 96)]),
    block_size=st.sampled_from([8, 16, 32]),
    shared_blocks=st.integers(0, 3),
    skipped_slots=st.booleans(),
    window=st.one_of(st.none(), st.integers(1, 70)),
    softcap=st.one_of(st.none(), st.floats(0.5, 50.0)),
    has_sinks=st.booleans(),
    magnitude=st.sampled_from([1.0, 8.0]),
)
def test_any_step_matches_float64(
    seed: int,
    dtype: mx.Dtype,
    heads: tuple[int, int],
    has_sinks: bool,
    **arguments: Any,
) -> None:
    group, num_kv_heads = heads
    sinks = np.random.default_rng(seed).standard_normal(group * num_kv_heads).astype(np.float32)
    case = oracle.make_case(
        seed,
        dtype,
        group=group,
        num_kv_heads=num_kv_heads,
        sinks=sinks if has_sinks else None,
        **arguments,
    )
    check(case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_caches_may_be_views_of_one_buffer(dtype: mx.Dtype, softcap: float | None) -> None:
    """As in latent attention: the values are the first dims of what holds the keys."""
    case = oracle.make_case(3, dtype, spans=[(1, 20), (7, 9)], head_dims=(96, 64), softcap=softcap)
    buffer = np.full((*case.k_cache.shape[:3], 200), 9.0, np.float32)
    buffer[..., 8:104], buffer[..., 120:184] = case.k_cache, case.v_cache
    combined = mx.array(buffer).astype(dtype)
    check(case, k_cache=combined[..., 8:104], v_cache=combined[..., 120:184])
    by_head = mx.contiguous(case.mlx()["k_cache"].transpose(2, 0, 1, 3))
    check(case, k_cache=by_head.transpose(1, 2, 0, 3))


@pytest.mark.parametrize("sinks", [None, np.array([0.5, -1.0, 2.0, 0.0], np.float32)])
def test_rows_without_a_key_are_zero(sinks: np.ndarray | None) -> None:
    """More queries than context, and sequences with no context at all."""
    check(oracle.make_case(1, mx.float32, spans=[(9, -4), (1, 12), (3, -3)], sinks=sinks))
    check(oracle.make_case(1, mx.float32, spans=[(1, -1), (1, 5), (0, 0)], sinks=sinks))
    check(oracle.make_case(1, mx.float32, spans=[(5, -5), (0, 7)], sinks=sinks))


def test_a_step_without_tokens() -> None:
    case = oracle.make_case(1, mx.float32, spans=[(0, 5), (0, 0)])
    check(case)


def test_negative_slots_leave_the_caches_alone() -> None:
    case = oracle.make_case(2, mx.float16, spans=[(1, 9), (4, 3)])
    arrays = case.mlx()
    slots = mx.full(arrays["slot_mapping"].shape, -1, mx.int32)
    caches = reference.reshape_and_cache(
        arrays["k"], arrays["v"], arrays["k_cache"], arrays["v_cache"], slots
    )
    for cache, before in zip(caches, (case.k_cache, case.v_cache), strict=True):
        np.testing.assert_array_equal(as_numpy(cache), before)


def test_the_callers_arrays_keep_their_values_until_given_up() -> None:
    """Writing binds new arrays; the objects passed in are not changed under the caller."""
    case = oracle.make_case(2, mx.float32, spans=[(4, 3)])
    arrays = case.mlx()
    mx.eval(reference.scatter_paged_attention(**arrays, **case.mlx_options()))
    np.testing.assert_array_equal(as_numpy(arrays["k_cache"]), case.k_cache)


def test_garbage_of_other_sequences_reaches_nobody() -> None:
    """NaN everywhere except in this sequence's own, visible tokens."""
    case = oracle.make_case(4, mx.float32, spans=[(1, 30), (1, 3), (5, 20)], window=6)
    k_cache, v_cache = (np.full_like(cache, np.nan) for cache in (case.k_cache, case.v_cache))
    for seq, (table, length) in enumerate(zip(case.block_tables, case.seq_lens, strict=True)):
        first = length - np.diff(case.cu_seqlens_q)[seq] - 6 + 1
        for position in range(max(first, 0), length):
            place = (table[position // 8], position % 8)
            k_cache[place], v_cache[place] = case.k_cache[place], case.v_cache[place]
    case.k_cache, case.v_cache = k_cache, v_cache
    check(case)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("slot_mapping", [0, 1, 4096], "slot_mapping must lie between 0 and"),
        ("block_tables", [[0], [99]], "block_tables must lie between 0 and"),
        ("seq_lens", [3, 50], "seq_lens must lie between 0 and 8, not 0 to 50"),
        ("cu_seqlens_q", [0, 1, 2], r"cu_seqlens_q must rise from 0 to num_tokens \(3\)"),
        ("cu_seqlens_q", [0, 4, 3], "cu_seqlens_q must rise"),
    ],
)
def test_indices_out_of_range_are_refused(name: str, value: list[int], message: str) -> None:
    case = oracle.make_case(0, mx.float32, spans=[(1, 2), (2, 3)])
    arrays = case.mlx() | {name: mx.array(value, mx.int32)}
    with pytest.raises(ValueError, match=message):
        reference.scatter_paged_attention(**arrays, **case.mlx_options())
