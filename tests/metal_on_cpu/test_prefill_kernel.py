"""The prefill kernel: every size of tile, masks at the edges of tiles, splits, and what it reads.

Steps of one sequence with several query tokens, which run this kernel alone.
"""

from __future__ import annotations

import itertools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from backend_metal import native
from backend_metal.devices import reference
from tests.metal_on_cpu import host, operators
from tests.metal_on_cpu.parity import check
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal.native_cases import (
    DTYPES,
    HEAD_DIMS,
    as_numpy,
    check_out,
    make_case,
)
from tests.support.instantiations import is_turn_of, marked

# Every head dim, every dtype, and all ways to divide columns over simdgroups.
SOME_SIZES = [
    (mx.float16, (64, 64)),
    (mx.float32, (80, 80)),
    (mx.bfloat16, (96, 96)),
    (mx.float16, (112, 112)),
    (mx.bfloat16, (128, 128)),
    (mx.float32, (192, 192)),
    (mx.float16, (256, 256)),
    (mx.float32, (576, 512)),
    (mx.float16, (512, 512)),
    (mx.bfloat16, (192, 128)),
    (mx.float16, (64, 256)),
]
# Head dims may be mixed.
ALL_HEAD_DIMS = [*HEAD_DIMS, (256, 112), (80, 256)]
TILE_KEYS = 32  # of float32 and head dim 64


def plan_of(case: oracle.Case, num_cores: int = 8) -> Any:
    num_kv_heads, head_dim = case.k_cache.shape[2:]
    return native.plan_gpu_launch(
        num_tokens=len(case.q),
        num_seqs=len(case.seq_lens),
        max_context=case.block_tables.shape[1] * case.k_cache.shape[1],
        itemsize=case.dtype.size,
        num_q_heads=case.q.shape[1],
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        head_dim_v=case.v_cache.shape[3],
        window=case.options.get("window"),
        num_cores=num_cores,
        threadgroup_memory_bytes=32768,
    ).prefill


def attend(case: oracle.Case) -> np.ndarray:
    out, *_ = operators.scatter_paged_attention(**case.mlx(), **case.mlx_options())
    return as_numpy(out)


def check_attention(case: oracle.Case) -> None:
    expected, *_ = reference.scatter_paged_attention(**case.mlx(), **case.mlx_options())
    out, *_ = operators.scatter_paged_attention(**case.mlx(), **case.mlx_options())
    check_out(case, out, as_numpy(expected))


def check_size(dtype: mx.Dtype, head_dims: tuple[int, int], **arguments: Any) -> None:
    # 69 rows: three tiles of 32, the last one not full; keys end within a tile.
    case = make_case(
        7, (2, 3), True, dtype=dtype, head_dims=head_dims, spans=[(23, 45)], **arguments
    )
    check(case)
    assert not any(kernel.startswith("decode") for kernel in operators.last_launch().kernels)


@pytest.mark.parametrize(("dtype", "head_dims"), SOME_SIZES)
def test_every_head_dim(dtype: mx.Dtype, head_dims: tuple[int, int]) -> None:
    check_size(dtype, head_dims, block_size=16)


def in_ladder(dtype: mx.Dtype, head_dims: tuple[int, int]) -> bool:
    """Each head dim, with another dtype than above."""
    return is_turn_of(dtype, DTYPES, ALL_HEAD_DIMS.index(head_dims) + 1)


@pytest.mark.parametrize(
    ("dtype", "head_dims"), marked(itertools.product(DTYPES, ALL_HEAD_DIMS), in_ladder)
)
def test_every_instantiation(dtype: mx.Dtype, head_dims: tuple[int, int]) -> None:
    check_size(dtype, head_dims, block_size=8)
    check_size(dtype, head_dims, block_size=32, softcap=2.0, window=30, skipped_slots=True)


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize(
    "window", [1, 2, TILE_KEYS - 1, TILE_KEYS, TILE_KEYS + 1, 2 * TILE_KEYS + 3, 1000]
)
def test_windows_at_the_edges_of_tiles(window: int, block_size: int) -> None:
    for before in (0, TILE_KEYS - 1, TILE_KEYS, 2 * TILE_KEYS - 11):
        check_attention(
            make_case(
                before,
                (1, 2),
                True,
                dtype=mx.float32,
                spans=[(17, before)],
                block_size=block_size,
                window=window,
            )
        )


@pytest.mark.parametrize("group", [1, 3, 5, 16, 40])
def test_tiles_that_end_within_a_token(group: int) -> None:
    for tokens in (2, 8, 33):
        check_attention(
            make_case(tokens, (2, group), False, dtype=mx.float32, spans=[(tokens, 19)])
        )


def test_sequences_of_all_lengths_side_by_side() -> None:
    spans = [(0, 0), (40, 3), (0, 9), (2, 0), (1, 30), (3, -3), (33, 64), (5, -2), (0, 1)]
    check(make_case(3, (2, 2), True, dtype=mx.float32, spans=spans, shared_blocks=1))


def test_no_tokens_at_all() -> None:
    case = oracle.make_case(1, mx.float32, spans=[(0, 9), (0, 0)])
    assert attend(case).shape == (0, 4, 64)


def test_a_row_does_not_depend_on_its_tile() -> None:
    """The same tokens in chunks that cut the rows into other tiles: the same bits."""
    whole = make_case(4, (2, 3), True, dtype=mx.float16, spans=[(60, 37)], window=50)
    out = attend(whole)
    k_cache, v_cache = oracle.scatter(whole)
    for first in (1, 10, 29):
        names = ("q", "k", "v", "slot_mapping")
        rest = {name: getattr(whole, name)[first:] for name in names}
        chunk = oracle.Case(
            **vars(whole)
            | rest
            | {"k_cache": k_cache, "v_cache": v_cache, "cu_seqlens_q": np.array([0, 60 - first])}
        )
        np.testing.assert_array_equal(attend(chunk), out[first:])


def latent_case(dtype: mx.Dtype) -> oracle.Case:
    case = oracle.make_case(
        5, dtype, spans=[(9, 40)], num_kv_heads=1, group=5, head_dims=(576, 512), block_size=16
    )
    case.v, case.v_cache = case.k[..., :512], case.k_cache[..., :512]
    return case


def test_values_in_keys_are_read_once() -> None:
    case = latent_case(mx.float16)
    apart = attend(case)
    barriers = operators.last_launch().dispatches[0].threadgroup_barriers
    arrays = case.mlx()
    views = {
        "v": arrays["k"][..., :512],
        "k_cache": arrays["k_cache"],
        "v_cache": arrays["k_cache"][..., :512],
    }
    out, *_ = operators.scatter_paged_attention(**arrays | views, **case.mlx_options())
    np.testing.assert_array_equal(as_numpy(out), apart)
    launch = operators.last_launch()
    assert launch.dispatches[0].threadgroup_barriers < barriers
    # 45 rows in tiles of 16.
    assert plan_of(case).tile_rows == 16
    assert launch.kv_read_amplification <= 3 * 1.1


@pytest.mark.parametrize("tokens", [8, 16, 50])
def test_a_tile_reads_each_key_once_for_all_heads(tokens: int) -> None:
    case = make_case(2, (2, 4), False, dtype=mx.float32, spans=[(tokens, 100)])
    attend(case)
    tiles = -(-4 * tokens // plan_of(case).tile_rows)
    assert operators.last_launch().kv_read_amplification <= 1.1 * tiles


def test_keys_outside_the_window_are_not_read() -> None:
    """One tile, of the 107 keys that its 8 tokens see; no scatter, which reads their own again."""
    case = make_case(2, (1, 4), False, dtype=mx.float32, spans=[(8, 900)], window=100)
    k_cache, v_cache = (mx.array(cache.astype(np.float32)) for cache in oracle.scatter(case))
    arrays = case.mlx()
    operators.paged_attention(
        arrays["q"],
        k_cache,
        v_cache,
        arrays["block_tables"],
        arrays["seq_lens"],
        arrays["cu_seqlens_q"],
        **case.mlx_options(),
    )
    assert operators.last_launch().kv_read_amplification == 1.0


# Of few rows, with more keys than one split has.
LONG = {"dtype": mx.float32, "head_dims": (64, 64), "block_size": 32}


@pytest.mark.parametrize(
    ("num_cores", "before", "num_splits"), [(76, 2500, 3), (1, 5000, 2)], ids=["short", "long"]
)
@pytest.mark.parametrize("has_sinks", [False, True])
def test_splits_are_folded(num_cores: int, before: int, num_splits: int, has_sinks: bool) -> None:
    """The longer one has more keys than so many splits of the least length hold."""
    case = make_case(6, (1, 4), has_sinks, spans=[(9, before)], **LONG)
    with host.gpu(core_count=num_cores):
        check_attention(case)
    prefill, *_, reduce = operators.last_launch().dispatches
    assert prefill.grid[2] == plan_of(case, num_cores).num_splits == num_splits
    assert reduce.kernel.startswith("prefill_reduce")
    assert reduce.barrier_before


@pytest.mark.parametrize("window", [1, 31, 1024, 1500])
def test_splits_of_a_window(window: int) -> None:
    for before in (1016, 1023, 1030, 2200):
        check_attention(make_case(before, (1, 2), True, spans=[(5, before)], window=window, **LONG))


def test_splits_do_not_depend_on_the_batch() -> None:
    """Chunks of many splits, of two, of one, and one that has no keys, together and alone."""
    spans = [(9, 1500), (1, 1200), (150, 1100), (3, -3), (90, 1200), (2, 2100)]
    together = make_case(9, (1, 4), True, spans=spans, **LONG)
    plan = plan_of(together)
    assert plan.device_tiles // 2 * plan.tile_rows < 150 * 4
    assert plan.num_splits == 3
    whole = attend(together)
    check_attention(together)
    start = 0
    for seq, (tokens, _) in enumerate(spans):
        rows = slice(start, start + tokens)
        names = ("q", "k", "v", "slot_mapping")
        alone = oracle.Case(
            **vars(together)
            | {name: getattr(together, name)[rows] for name in names}
            | {
                name: getattr(together, name)[seq : seq + 1]
                for name in ("block_tables", "seq_lens")
            }
            | {"cu_seqlens_q": np.array([0, tokens])}
        )
        np.testing.assert_array_equal(attend(alone), whole[rows])
        start += tokens


@pytest.mark.parametrize("seed", range(1, 5))
def test_threads_in_any_order(seed: int) -> None:
    """Schedules in which a barrier less would show."""
    for head_dims in ((64, 64), (192, 192)):
        case = make_case(
            seed, (1, 2), True, dtype=mx.float32, head_dims=head_dims, spans=[(19, 77)]
        )
        expected = attend(case)
        with host.execution(seed=seed):
            np.testing.assert_array_equal(attend(case), expected)
