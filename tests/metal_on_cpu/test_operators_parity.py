"""The Metal operators against the reference, over the space of the CPU primitive's tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metal_on_cpu import operators
from tests.metal_on_cpu.parity import LAYOUTS, check, check_on_some_gpu
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal.native_cases import (
    DTYPES,
    HEAD_DIMS,
    HEADS,
    SOFTCAPS,
    WINDOWS,
    as_numpy,
    make_case,
)
from tests.support.fuzzing import fuzz

# Those of the quick run, whose kernels take half a minute to compile.
FEW_SIZES = [(mx.float16, (64, 64)), (mx.float32, (128, 128))]


short_spans = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([0, 1, 1]), st.integers(2, 20)),  # query tokens
        st.one_of(st.just(0), st.integers(-3, 60), st.integers(60, 140)),  # tokens before them
    ).filter(lambda span: sum(span) >= 0),
    min_size=1,
    max_size=4,
)
options: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 2**16),
    "dtype": st.sampled_from(DTYPES),
    "heads": HEADS,
    "head_dims": st.sampled_from(HEAD_DIMS),
    "block_size": st.sampled_from([8, 16, 32]),
    "window": WINDOWS,
    "softcap": SOFTCAPS,
    "has_sinks": st.booleans(),
    "skipped_slots": st.booleans(),
}
any_step = options | {
    "spans": short_spans,
    "shared_blocks": st.integers(0, 3),
    "magnitude": st.sampled_from([0.0, 1.0, 8.0]),
}


def check_step(layout: str, **arguments: Any) -> None:
    check_on_some_gpu(make_case(**arguments), arguments["seed"], layout=layout)


@fuzz(70)
@given(
    layout=st.sampled_from(LAYOUTS),
    size=st.sampled_from(FEW_SIZES),
    **{name: strategy for name, strategy in any_step.items() if name not in ("dtype", "head_dims")},
)
def test_any_step(layout: str, size: tuple[mx.Dtype, tuple[int, int]], **arguments: Any) -> None:
    check_step(layout, dtype=size[0], head_dims=size[1], **arguments)


@fuzz(240)
@given(layout=st.sampled_from(LAYOUTS), **any_step)
def test_any_step_of_any_shape(layout: str, **arguments: Any) -> None:
    check_step(layout, **arguments)


@fuzz(40)
@given(
    layout=st.sampled_from(LAYOUTS),
    **options
    | {
        "heads": st.sampled_from([(1, 1), (1, 4), (2, 3)]),
        "spans": st.lists(
            st.tuples(st.integers(0, 300), st.integers(0, 40)), min_size=1, max_size=2
        ),
    },
)
def test_long_prefills(layout: str, **arguments: Any) -> None:
    check_step(layout, **arguments)


@fuzz(30)
@given(
    layout=st.sampled_from(LAYOUTS),
    **options
    | {
        "heads": st.sampled_from([(1, 1), (1, 4), (1, 16)]),
        "head_dims": st.sampled_from([(64, 64), (128, 128)]),
        "spans": st.tuples(st.sampled_from([1, 1, 2, 17]), st.integers(500, 4000)).map(
            lambda span: [span]
        ),
    },
)
def test_long_contexts(layout: str, **arguments: Any) -> None:
    check_step(layout, **arguments)


ROWS = pytest.mark.parametrize("spans", [[(1, 90)], [(40, 300)]], ids=["decode", "prefill"])


@ROWS
@pytest.mark.parametrize("nats", [-30.0, 30.0])
def test_scores_far_from_zero(nats: float, spans: list[tuple[int, int]]) -> None:
    case = make_case(1, heads=(1, 2), has_sinks=False, dtype=mx.float32, spans=spans, window=13)
    case.q[..., 0] = 1.0
    for keys in (case.k, case.k_cache):
        keys[..., 0] = np.where(np.isnan(keys[..., 0]), np.nan, nats / case.options["scale"])
    check(case.rounded())


@ROWS
def test_huge_scores(spans: list[tuple[int, int]]) -> None:
    """One key takes all the weight, by more nats than a float can tell apart."""
    case = make_case(3, heads=(1, 2), has_sinks=True, dtype=mx.float32, spans=spans)
    case.q *= 1e14
    case.k *= 1e14
    check(case.rounded())


@pytest.mark.parametrize("dtype", [mx.float16, mx.float32, mx.bfloat16])
def test_values_may_be_a_prefix_of_the_keys(dtype: mx.Dtype) -> None:
    """Latent attention: one row of 576 dims, whose first 512 are the values."""
    case = oracle.make_case(
        5, dtype, spans=[(1, 70), (3, 30)], num_kv_heads=1, group=16, head_dims=(576, 512)
    )
    case.v, case.v_cache = case.k[..., :512], case.k_cache[..., :512]
    check(case, layout="prefix")


def test_queries_keys_and_tables_of_any_strides() -> None:
    case = oracle.make_case(6, mx.float16, spans=[(1, 20), (7, 9)])
    arrays = case.mlx()
    changed = {}
    for name in ("q", "k", "v"):
        for order in ((1, 0, 2), (2, 1, 0)):
            moved = mx.contiguous(arrays[name].transpose(*order))
            changed[name] = moved.transpose(*np.argsort(order).tolist())
            check(case, **changed)
    changed["block_tables"] = mx.contiguous(arrays["block_tables"].T).T
    changed["seq_lens"] = mx.repeat(arrays["seq_lens"], 2)[::2]
    changed["slot_mapping"] = mx.repeat(arrays["slot_mapping"], 3)[::3]
    check(case, **changed)


@pytest.mark.parametrize("has_sinks", [False, True])
def test_rows_without_a_key_are_zero(has_sinks: bool) -> None:
    for spans in ([(9, -4), (1, 12), (3, -3)], [(1, -1), (1, 5), (0, 0)], [(5, -5)], [(0, 5)]):
        check(make_case(1, heads=(2, 2), has_sinks=has_sinks, dtype=mx.float32, spans=spans))


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Bit for bit the same alone and in company."""
    spans = [(1, 700), (9, 130), (1, 40), (33, 0)]
    together = make_case(8, heads=(2, 4), has_sinks=True, dtype=mx.float16, spans=spans)
    whole = operators_out(together)
    start = 0
    for seq, (query, _) in enumerate(spans):
        rows = slice(start, start + query)
        alone = one_sequence(together, seq, rows)
        np.testing.assert_array_equal(operators_out(alone), whole[rows])
        start += query


def operators_out(case: oracle.Case) -> np.ndarray:
    out, *_ = operators.scatter_paged_attention(**case.mlx(), **case.mlx_options())
    return as_numpy(out)


def one_sequence(case: oracle.Case, seq: int, rows: slice) -> oracle.Case:
    return dataclasses.replace(
        case,
        q=case.q[rows],
        k=case.k[rows],
        v=case.v[rows],
        slot_mapping=case.slot_mapping[rows],
        block_tables=case.block_tables[seq : seq + 1],
        seq_lens=case.seq_lens[seq : seq + 1],
        cu_seqlens_q=np.array([0, rows.stop - rows.start]),
    )
