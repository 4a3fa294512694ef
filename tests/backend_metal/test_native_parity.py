"""The native operators against float64 and against the reference operators."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import native
from backend_metal.devices import reference
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal.native_cases import (
    DTYPES,
    HEAD_DIMS,
    as_numpy,
    attention,
    check,
    check_out,
    make_case,
    options,
    run,
    short_spans,
)
from tests.support.backend_metal.packed_step import relative_rms
from tests.support.fuzzing import fuzz


@fuzz(5000, quick=100)
@given(
    **options,
    spans=short_spans,
    shared_blocks=st.integers(0, 3),
    skipped_slots=st.booleans(),
    magnitude=st.sampled_from([0.0, 1.0, 8.0]),
)
def test_any_step_matches_float64(**arguments: Any) -> None:
    check(make_case(**arguments))


@fuzz(1000, quick=40)
@given(**options, spans=short_spans, skipped_slots=st.booleans())
def test_any_step_matches_the_reference(**arguments: Any) -> None:
    case = make_case(**arguments)
    out, *caches = reference.scatter_paged_attention(**case.mlx(), **case.mlx_options())
    mx.eval(out, caches)
    actual = run(case)
    check_out(case, actual[0], as_numpy(out))
    for cache, want in zip(actual[1:], caches, strict=True):
        np.testing.assert_array_equal(as_numpy(cache), as_numpy(want))


@fuzz(500, quick=30)
@given(
    **options | {"heads": st.sampled_from([(1, 1), (1, 2), (2, 3)])},
    spans=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), min_size=1, max_size=2),
)
def test_long_prefills_match_float64(**arguments: Any) -> None:
    check(make_case(**arguments))


@fuzz(200, quick=15)
@given(
    **options
    | {
        "heads": st.sampled_from([(1, 1), (1, 4), (1, 16)]),
        "head_dims": st.sampled_from([(64, 64), (96, 64)]),
    },
    spans=st.tuples(st.sampled_from([1, 1, 2, 17]), st.integers(500, 4000)).map(
        lambda span: [span]
    ),
)
def test_long_contexts_match_float64(**arguments: Any) -> None:
    check(make_case(**arguments))


@pytest.mark.parametrize("instruction_set", ["baseline", "avx2", "avx512"])
def test_every_instruction_set(instruction_set: str) -> None:
    chosen = native.instruction_set()
    try:
        native.set_instruction_set(instruction_set)
    except ValueError:
        pytest.skip(f"this machine has no {instruction_set}")
    try:
        for seed in range(30):
            rng = np.random.default_rng(seed)
            check(
                make_case(
                    seed,
                    heads=(int(rng.integers(1, 3)), int(rng.integers(1, 17))),
                    dtype=DTYPES[seed % 3],
                    head_dims=HEAD_DIMS[seed % len(HEAD_DIMS)],
                    spans=[(1, int(rng.integers(0, 600))), (int(rng.integers(2, 40)), 9)],
                    window=[None, 1, 7, 64, 700][seed % 5],
                    softcap=[None, 3.0][seed % 2],
                    has_sinks=seed % 4 == 0,
                )
            )
    finally:
        native.set_instruction_set(chosen)


def test_the_fast_oracle_is_the_plain_one() -> None:
    for seed in range(12):
        case = make_case(
            seed,
            heads=(2, 3),
            dtype=mx.float32,
            spans=[(1, 9), (5, 20), (9, -4), (0, 3)],
            window=[None, 7][seed % 2],
            softcap=[None, 2.0][seed // 2 % 2],
            has_sinks=seed % 3 == 0,
        )
        expected = oracle.attention(case, *oracle.scatter(case))
        np.testing.assert_allclose(attention(case), expected, rtol=1e-9, atol=1e-12)


ROWS = pytest.mark.parametrize("spans", [[(1, 90)], [(40, 700)]], ids=["decode", "prefill"])


@ROWS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nats", [-30.0, 30.0])
def test_scores_far_from_zero(dtype: mx.Dtype, nats: float, spans: list[tuple[int, int]]) -> None:
    """Softmax has no origin: a window whose largest score is -30 nats is as good as any."""
    case = make_case(1, heads=(1, 2), has_sinks=False, dtype=dtype, spans=spans, window=13)
    # Along the first dim every query is 1, and every key what makes the score `nats`.
    case.q[..., 0] = 1.0
    for keys in (case.k, case.k_cache):
        keys[..., 0] = np.where(np.isnan(keys[..., 0]), np.nan, nats / case.options["scale"])
    check(case.rounded())


@ROWS
def test_equal_keys_give_the_mean_of_the_values(spans: list[tuple[int, int]]) -> None:
    case = make_case(2, heads=(1, 4), has_sinks=False, dtype=mx.float32, spans=spans)
    for keys in (case.k, case.k_cache):
        keys[...] = np.where(np.isnan(keys), np.nan, 0.25)
    check(case)


@ROWS
@pytest.mark.parametrize(("dtype", "huge"), [(mx.float32, 1e15), (mx.float16, 6e4)])
def test_huge_values(dtype: mx.Dtype, huge: float, spans: list[tuple[int, int]]) -> None:
    """One key takes all the weight, by more nats than a float can tell apart."""
    case = make_case(3, heads=(1, 2), has_sinks=True, dtype=dtype, spans=spans)
    case.q *= huge / 8
    case.k *= huge / 8
    np.clip(case.k, -huge, huge, out=case.k)
    np.clip(case.q, -huge, huge, out=case.q)
    check(case.rounded())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_caches_may_be_views_of_one_buffer(dtype: mx.Dtype, softcap: float | None) -> None:
    spans = [(1, 20), (7, 9), (1, 600)]
    case = oracle.make_case(3, dtype, spans=spans, head_dims=(96, 64), softcap=softcap)
    buffer = np.full((*case.k_cache.shape[:3], 200), 9.0, np.float32)
    buffer[..., 8:104], buffer[..., 120:184] = case.k_cache, case.v_cache
    combined = mx.array(buffer).astype(dtype)
    check(case, k_cache=combined[..., 8:104], v_cache=combined[..., 120:184])
    for order in ((2, 0, 1, 3), (1, 2, 0, 3)):
        moved = mx.contiguous(case.mlx()["k_cache"].transpose(*order))
        check(case, k_cache=moved.transpose(*np.argsort(order).tolist()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_may_be_a_prefix_of_the_keys(dtype: mx.Dtype) -> None:
    """Latent attention: one row of 576 dims, whose first 512 are the values."""
    case = oracle.make_case(
        5, dtype, spans=[(1, 70), (3, 30)], num_kv_heads=1, group=16, head_dims=(576, 512)
    )
    case.v, case.v_cache = case.k[..., :512], case.k_cache[..., :512]
    latent = case.mlx()["k_cache"]
    check(case, k_cache=latent, v_cache=latent[..., :512])


@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_keys_and_tables_of_any_strides(dtype: mx.Dtype) -> None:
    case = oracle.make_case(6, dtype, spans=[(1, 20), (7, 9)])
    arrays = case.mlx()
    changed = {}
    for name in ("q", "k", "v"):
        for order in ((1, 0, 2), (2, 1, 0)):
            moved = mx.contiguous(arrays[name].transpose(*order))
            changed[name] = moved.transpose(*np.argsort(order).tolist())
            check(case, **changed)
    changed["block_tables"] = mx.contiguous(arrays["block_tables"].T).T
    wide = mx.repeat(arrays["seq_lens"], 2)
    changed["seq_lens"] = wide[::2]
    check(case, **changed)


@pytest.mark.parametrize("has_sinks", [False, True])
def test_rows_without_a_key_are_zero(has_sinks: bool) -> None:
    for spans in ([(9, -4), (1, 12), (3, -3)], [(1, -1), (1, 5), (0, 0)], [(5, -5)], [(0, 5)]):
        check(make_case(1, heads=(2, 2), has_sinks=has_sinks, dtype=mx.float32, spans=spans))


@ROWS
def test_paths_differ_by_rounding_alone(spans: list[tuple[int, int]]) -> None:
    """Output that is the reference's, bit for bit, would mean that no native kernel ran."""
    case = make_case(7, heads=(2, 4), has_sinks=False, dtype=mx.float32, spans=spans)
    out = as_numpy(run(case)[0])
    other = reference.scatter_paged_attention(**case.mlx(), **case.mlx_options())[0]
    assert (out != as_numpy(other)).any()
    assert relative_rms(out, as_numpy(other)) <= 1e-5


def test_garbage_of_other_sequences_reaches_nobody() -> None:
    """NaN everywhere except in this sequence's own, visible tokens."""
    case = oracle.make_case(4, mx.float32, spans=[(1, 30), (1, 3), (5, 20)], window=6)
    k_cache, v_cache = (np.full_like(cache, np.nan) for cache in (case.k_cache, case.v_cache))
    query_lens = np.diff(case.cu_seqlens_q)
    for table, length, q_len in zip(case.block_tables, case.seq_lens, query_lens, strict=True):
        for position in range(max(length - q_len - 5, 0), length):
            place = (table[position // 8], position % 8)
            k_cache[place], v_cache[place] = case.k_cache[place], case.v_cache[place]
    case.k_cache, case.v_cache = k_cache, v_cache
    check(case)
