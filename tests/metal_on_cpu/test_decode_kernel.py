"""The decode kernel, its reduction and scatter: what each of them promises.

Steps of sequences with one query token, through the shipped dispatch code.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from backend_metal import _native, native
from tests.metal_on_cpu import host, operators
from tests.metal_on_cpu.parity import check
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal.native_cases import DTYPES, HEAD_DIMS, as_numpy, make_case
from tests.support.instantiations import is_turn_of, marked

# All dtypes, both numbers of row tiles, and all widths of chunks.
SOME_SIZES = [
    (mx.bfloat16, (80, 80), 8),
    (mx.float32, (96, 96), 9),
    (mx.bfloat16, (256, 256), 12),
    (mx.float16, (576, 512), 16),
    (mx.float32, (512, 512), 12),
    (mx.float32, (112, 192), 5),
]
SPLIT = 128  # keys, on the stand-in's device for two K/V heads
SPANS = [(1, 300), (1, 0), (1, 9)]


def attend(case: oracle.Case, **changed: mx.array) -> np.ndarray:
    out, *_ = operators.scatter_paged_attention(**case.mlx() | changed, **case.mlx_options())
    return as_numpy(out)


def kernels() -> list[str]:
    """Without the arguments of the templates."""
    return [
        re.split("_(float|half|bfloat|ushort|uint)", name)[0]
        for name in operators.last_launch().kernels
    ]


def dispatch_of(kernel: str) -> host.Dispatch:
    return next(
        dispatch
        for dispatch in operators.last_launch().dispatches
        if dispatch.kernel.startswith(kernel)
    )


@pytest.mark.parametrize(("dtype", "head_dims", "group"), SOME_SIZES)
def test_head_dims(dtype: mx.Dtype, head_dims: tuple[int, int], group: int) -> None:
    check(make_case(1, (1, group), True, dtype=dtype, head_dims=head_dims, spans=SPANS))


ALL_HEAD_DIMS = [*HEAD_DIMS, (80, 256), (256, 112)]


def in_ladder(dtype: mx.Dtype, head_dims: tuple[int, int], group: int) -> bool:
    """Each head dim and number of row tiles, with one of the dtypes in turn."""
    return is_turn_of(dtype, DTYPES, ALL_HEAD_DIMS.index(head_dims) + group // 16)


@pytest.mark.parametrize(
    ("dtype", "head_dims", "group"),
    marked(itertools.product(DTYPES, ALL_HEAD_DIMS, [8, 16]), in_ladder),
)
def test_every_instantiation(dtype: mx.Dtype, head_dims: tuple[int, int], group: int) -> None:
    arguments: dict[str, Any] = {"dtype": dtype, "head_dims": head_dims, "skipped_slots": True}
    check(make_case(2, (1, group), True, spans=SPANS, block_size=32, softcap=3.0, **arguments))


@pytest.mark.parametrize("group", [1, 2, 5, 7, 8, 9, 15, 16, 17, 40])
def test_groups(group: int) -> None:
    check(make_case(group, (2, group), True, dtype=mx.float32, spans=[(1, 40), (1, 200)]))


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("window", [None, 1, 7, 31, 32, 33, SPLIT - 1, SPLIT, SPLIT + 1, 1000])
def test_contexts_and_windows_at_the_edges_of_runs_and_splits(
    window: int | None, block_size: int
) -> None:
    lengths = [0, 6, 7, 31, 32, 33, SPLIT - 2, SPLIT - 1, SPLIT, 4 * SPLIT, 5 * SPLIT + 33]
    spans = [(1, length) for length in lengths]
    options = {} if window is None else {"window": window}
    check(
        make_case(3, (1, 2), True, dtype=mx.float32, spans=spans, block_size=block_size, **options)
    )


def test_softcap_of_large_scores() -> None:
    check(make_case(4, (2, 2), True, dtype=mx.float32, spans=SPANS, softcap=0.7, magnitude=1000.0))


def test_rows_without_keys_or_tokens() -> None:
    spans = [(0, 0), (1, -1), (0, 50), (1, 12), (0, 3)]
    case = make_case(5, (2, 3), True, dtype=mx.float32, spans=spans)
    check(case)
    assert not attend(case)[0].any()


def test_own_tokens_without_a_slot_are_read_from_the_cache() -> None:
    case = make_case(6, (2, 2), False, dtype=mx.float32, spans=[(1, 20)] * 6, skipped_slots=True)
    assert 0 < (case.slot_mapping < 0).sum() < len(case.slot_mapping)
    check(case)


def test_decode_rows_of_a_mixed_batch_keep_their_bits() -> None:
    alone = make_case(7, (2, 4), True, dtype=mx.float16, spans=[(1, 700)])
    out = attend(alone)[0]
    mixed = make_case(8, (2, 4), True, dtype=mx.float16, spans=[(9, 30), (1, 700), (1, 2900)])
    arrays, row = mixed.mlx(), 9
    for name in ("q", "k", "v"):
        arrays[name][row] = alone.mlx()[name][0]
    for cache, table in (("k_cache", mixed.block_tables[1]), ("v_cache", mixed.block_tables[1])):
        blocks = alone.mlx()[cache][mx.array(alone.block_tables[0])]
        arrays[cache][mx.array(table[: len(alone.block_tables[0])])] = blocks
    options = mixed.mlx_options() | {"sinks": alone.mlx_options()["sinks"]}
    result, *_ = operators.scatter_paged_attention(**arrays, **options)
    np.testing.assert_array_equal(as_numpy(result)[row], out)
    assert kernels()[:3] == ["decode", "prefill", "scatter"]


@pytest.mark.parametrize("reverse", [False, True])
def test_nothing_waits_but_the_reduction(reverse: bool) -> None:
    case = make_case(9, (2, 4), False, dtype=mx.float32, spans=[(1, 300), (5, 40)])
    expected = attend(case)
    with host.execution(reverse_unordered=reverse, seed=3):
        np.testing.assert_array_equal(attend(case), expected)
    launch = operators.last_launch()
    assert kernels() == ["decode", "prefill", "scatter", "reduce"]
    assert [d.barrier_before for d in launch.dispatches] == [False, False, False, True]


def test_shapes_that_rule_a_kernel_out_skip_it() -> None:
    for spans, expected in (
        ([(1, 20)], ["decode", "scatter"]),
        ([(1, 300)], ["decode", "scatter", "reduce"]),
        ([(7, 20)], ["prefill", "scatter"]),
        ([(1, 3), (1, 4)], ["decode", "prefill", "scatter"]),
    ):
        attend(make_case(10, (2, 1), False, dtype=mx.float32, spans=spans))
        assert kernels() == expected


@pytest.mark.parametrize("group", [1, 3, 8])
def test_a_group_reads_keys_and_values_once(group: int) -> None:
    spans = [(1, 700), (1, 90), (1, 31)]
    attend(make_case(11, (2, group), False, dtype=mx.float16, spans=spans, block_size=16))
    # This step's own keys and values, which scatter reads too, are the rest.
    assert 1.0 <= operators.last_launch().kv_read_amplification <= 1.0 + 3 / 820


def test_a_window_reads_nothing_before_it() -> None:
    case = make_case(12, (1, 4), False, dtype=mx.float16, spans=[(1, 3000)], window=512)
    attend(case)
    assert 1.0 <= operators.last_launch().kv_read_amplification <= 1.0 + 1 / 512


@pytest.mark.parametrize("padding", [0, 1, 8])
def test_caches_that_are_views_of_one_buffer(padding: int) -> None:
    case = make_case(13, (2, 2), False, dtype=mx.float16, spans=SPANS)
    expected = attend(case)
    arrays = case.mlx()
    buffer = mx.concatenate(
        [
            arrays["k_cache"],
            arrays["v_cache"],
            mx.zeros((*case.k_cache.shape[:3], padding), case.dtype),
        ],
        axis=-1,
    )
    arrays["k_cache"], arrays["v_cache"] = buffer[..., :64], buffer[..., 64:128]
    out, k_cache, v_cache = operators.scatter_paged_attention(**arrays, **case.mlx_options())
    np.testing.assert_array_equal(as_numpy(out), expected)
    for cache, want in zip((k_cache, v_cache), oracle.scatter(case), strict=True):
        np.testing.assert_array_equal(as_numpy(cache), want)
    scatter = dispatch_of("scatter")
    two_caches, aligned = (scatter.function_constants[index] for index in (7, 6))
    assert not two_caches
    assert aligned == (padding != 1)


def test_inputs_of_any_strides() -> None:
    case = make_case(14, (2, 2), True, dtype=mx.float16, spans=SPANS)
    expected = attend(case)
    changed: dict[str, mx.array] = {}
    for name, array in case.mlx().items():
        if "cache" in name:
            # The last dimension stays; heads, slots and blocks change places.
            moved = mx.contiguous(array.transpose(2, 1, 0, 3))
            changed[name] = moved.transpose(2, 1, 0, 3)
        elif array.ndim > 1:
            changed[name] = mx.contiguous(array.swapaxes(0, -1)).swapaxes(0, -1)
        else:
            changed[name] = mx.stack([array, array - 7], axis=1)[:, 0]
    mx.eval(changed)
    np.testing.assert_array_equal(attend(case, **changed), expected)
    assert kernels() == ["pack", "pack", "pack", "decode", "prefill", "scatter", "reduce"]


def test_blocks_further_apart_than_an_int_counts() -> None:
    case = make_case(15, (1, 2), False, dtype=mx.float16, spans=[(1, 4), (1, 6)])
    case.block_tables, case.slot_mapping = np.array([[1], [0]]), np.array([8 + 4, 6], np.int32)
    case.k_cache, case.v_cache = (
        np.random.default_rng(name).standard_normal((2, 8, 1, 64)).astype(np.float16)
        for name in range(2)
    )
    # Memory of which a few pages are ever touched. It is not copied for the kernels, and MLX aligns
    # a CPU's to 8 bytes: the rows must not count as aligned.
    far = _native.testing.uninitialized([2, 2**16, 2**9, 72], mx.float16)[..., 4:68]
    assert far[0].size == 2**31
    slots = mx.arange(16, dtype=mx.int32)
    rows = [mx.array(cache).reshape(16, 1, 64) for cache in (case.k_cache, case.v_cache)]
    written = operators.reshape_and_cache(*rows, far[:, :8, :1], far[:, 8:16, 5:6], slots)
    changed = dict(zip(("k_cache", "v_cache"), written, strict=True))
    np.testing.assert_array_equal(attend(case, **changed), attend(case))


def test_threadgroup_memory_and_grid_are_the_plans() -> None:
    case = make_case(16, (2, 8), False, dtype=mx.bfloat16, head_dims=(128, 128), spans=[(1, 900)])
    attend(case)
    plan = native.plan_gpu_launch(
        num_tokens=1,
        num_seqs=1,
        max_context=case.block_tables.shape[1] * case.k_cache.shape[1],
        itemsize=2,
        num_q_heads=16,
        num_kv_heads=2,
        head_dim=128,
        head_dim_v=128,
        num_cores=8,
        threadgroup_memory_bytes=32768,
    )
    decode, reduce = dispatch_of("decode"), dispatch_of("reduce")
    assert decode.grid == plan.decode.grid.threadgroups
    assert decode.threadgroup == (plan.decode.grid.threads, 1, 1)
    assert decode.threadgroup_memory == plan.decode.grid.threadgroup_memory_bytes
    assert reduce.grid == plan.reduce.threadgroups
