"""A GPU's launch plan: grids bound what any lengths need, and splits are the row's own affair."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import _native, native
from tests.support.backend_metal.native_cases import HEAD_DIMS
from tests.support.fuzzing import fuzz

FUZZ = fuzz(200)
THREADGROUP_MEMORY = 32768
CORES = [7, 8, 10, 16, 20, 40, 76, 80]


def plan(
    *,
    heads: tuple[int, int] = (8, 4),
    head_dims: tuple[int, int] = (128, 128),
    num_cores: int = 40,
    num_tokens: int = 1,
    num_seqs: int = 1,
    max_context: int = 4096,
    itemsize: int = 2,
    window: int | None = None,
) -> _native.GpuLaunchPlan:
    num_kv_heads, group = heads
    return native.plan_gpu_launch(
        num_tokens=num_tokens,
        num_seqs=num_seqs,
        max_context=max_context,
        itemsize=itemsize,
        num_q_heads=num_kv_heads * group,
        num_kv_heads=num_kv_heads,
        head_dim=head_dims[0],
        head_dim_v=head_dims[1],
        window=window,
        num_cores=num_cores,
        threadgroup_memory_bytes=THREADGROUP_MEMORY,
    )


def num_threadgroups(grid: _native.GpuGrid) -> int:
    x, y, z = grid.threadgroups
    return x * y * z


@pytest.mark.parametrize("head_dims", [*HEAD_DIMS, (64, 256), (256, 64)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
def test_every_threadgroup_fits(head_dims: tuple[int, int], dtype: mx.Dtype) -> None:
    for group in range(1, 129):
        made = plan(heads=(2, group), head_dims=head_dims, itemsize=dtype.size, num_tokens=2)
        decode = made.decode
        for grid in (decode.grid, made.reduce, made.prefill.grid):
            assert grid.threadgroup_memory_bytes <= THREADGROUP_MEMORY
            assert grid.threadgroup_memory_bytes % 16 == 0
            assert grid.threads % 32 == 0
            assert grid.threads <= 1024
        assert (decode.passes - 1) * decode.row_tiles * 8 < group
        assert group <= decode.passes * decode.row_tiles * 8


def test_groups_up_to_16_take_one_pass() -> None:
    for head_dims in HEAD_DIMS:
        for group in range(1, 17):
            assert plan(heads=(1, group), head_dims=head_dims).decode.passes == 1
    # Queries of 16 heads and 576 dimensions are 36 KB in float32.
    wide: dict[str, Any] = {"heads": (1, 16), "head_dims": (576, 512)}
    assert plan(**wide, itemsize=4).decode.passes == 2


@FUZZ
@given(
    heads=st.tuples(st.integers(1, 16), st.integers(1, 40)),
    num_cores=st.sampled_from(CORES),
    max_context=st.integers(0, 200_000),
    window=st.one_of(st.none(), st.integers(1, 5000)),
    data=st.data(),
)
def test_splits_cover_the_rows_keys_and_fit_the_grid(
    heads: tuple[int, int],
    num_cores: int,
    max_context: int,
    window: int | None,
    data: st.DataObject,
) -> None:
    decode = plan(heads=heads, num_cores=num_cores, max_context=max_context, window=window).decode
    seq_len = data.draw(st.integers(0, max_context))
    first = 0 if window is None else max(0, seq_len - window)
    length, count = native.row_splits(first, seq_len, decode.keys_per_split, decode.max_splits)
    assert count <= decode.num_splits <= decode.max_splits
    assert decode.grid.threadgroups[1] == decode.num_splits
    assert length % decode.keys_per_split == 0
    if seq_len == 0:
        assert count == 0
    else:
        start = first // length * length
        assert start + (count - 1) * length < seq_len <= start + count * length


@FUZZ
@given(
    heads=st.tuples(st.integers(1, 16), st.integers(1, 40)),
    num_cores=st.sampled_from(CORES),
    batches=st.lists(
        st.fixed_dictionaries(
            {
                "num_tokens": st.integers(1, 600),
                "num_seqs": st.integers(1, 64),
                "max_context": st.integers(1, 200_000),
            }
        ),
        min_size=2,
        max_size=4,
    ),
)
def test_the_batch_does_not_decide_where_splits_end(
    heads: tuple[int, int], num_cores: int, batches: list[dict[str, int]]
) -> None:
    plans = [plan(heads=heads, num_cores=num_cores, **batch) for batch in batches]
    decided = {
        (
            made.decode.keys_per_split,
            made.decode.max_splits,
            made.decode.row_tiles,
            made.prefill.tile_rows,
            made.prefill.key_tile,
            made.prefill.keys_per_split,
            made.prefill.max_splits,
            made.prefill.device_tiles,
        )
        for made in plans
    }
    assert len(decided) == 1


@pytest.mark.parametrize("num_cores", CORES)
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4, 8, 16])
def test_one_long_sequence_fills_the_device(num_cores: int, num_kv_heads: int) -> None:
    made = plan(heads=(num_kv_heads, 4), num_cores=num_cores, max_context=16384)
    # 16384 keys are at most 128 splits of 128.
    assert num_threadgroups(made.decode.grid) >= min(4 * num_cores, 128 * num_kv_heads)
    # More than that would only write more partial states.
    assert num_threadgroups(made.decode.grid) <= max(8 * num_cores, 4 * num_kv_heads)


def test_partial_states_have_room_and_are_folded() -> None:
    made = plan(num_seqs=5, num_tokens=5, max_context=3000)
    splits = made.decode.num_splits
    assert splits > 1
    assert made.decode.num_partials == 5 * 32 * splits * (128 + 2)
    assert made.reduce.threadgroups == (8, 5, 1)
    short = plan(num_seqs=5, num_tokens=5, max_context=made.decode.keys_per_split)
    assert short.decode.num_splits == 1
    assert short.decode.num_partials == 0
    assert num_threadgroups(short.reduce) == 0


def test_shapes_that_rule_a_kernel_out() -> None:
    decode = plan(num_seqs=1, num_tokens=1)
    assert num_threadgroups(decode.decode.grid) > 0
    assert num_threadgroups(decode.prefill.grid) == 0
    prefill = plan(num_seqs=1, num_tokens=9)
    assert num_threadgroups(prefill.decode.grid) == num_threadgroups(prefill.reduce) == 0
    assert num_threadgroups(prefill.prefill.grid) > 0
    mixed = plan(num_seqs=2, num_tokens=2)
    assert num_threadgroups(mixed.decode.grid) > 0
    assert num_threadgroups(mixed.prefill.grid) > 0
    for empty in (plan(num_seqs=1, num_tokens=0), plan(num_seqs=0, num_tokens=0)):
        assert num_threadgroups(empty.decode.grid) == num_threadgroups(empty.prefill.grid) == 0


def test_rows_without_keys_are_written_by_somebody() -> None:
    assert plan(max_context=0).decode.grid.threadgroups == (8, 1, 1)
