"""How often K and V are read: once a group of query heads, once a tile of rows."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from backend_metal import native
from tests.metal_on_cpu import host, operators
from tests.support.backend_metal import attention_oracle as oracle

DECODE, WINDOWED, PREFILL = 1.05, 1.2, 1.1

# What a kernel does that gives each query head a threadgroup of its own.
PER_HEAD = """
#include <metal_stdlib>
using namespace metal;

[[kernel]] void scores_of_a_head(
    const device float* queries [[buffer(0)]],
    const device float4* keys [[buffer(1)]],
    device float* scores [[buffer(2)]],
    uint head [[threadgroup_position_in_grid]],
    uint key [[thread_position_in_threadgroup]]) {
  scores[head * 32 + key] = queries[head] * dot(keys[key], float4(1));
}
"""


def amplification(
    *, spans: list[tuple[int, int]], group: int, dtype: mx.Dtype = mx.float16, **arguments: Any
) -> float:
    case = oracle.make_case(1, dtype, spans=spans, group=group, block_size=16, **arguments)
    operators.scatter_paged_attention(**case.mlx(), **case.mlx_options())
    return operators.last_launch().kv_read_amplification


def tiles(num_tokens: int, group: int, head_dims: tuple[int, int]) -> int:
    """Tiles that the rows of one sequence and K/V head fill."""
    plan = native.plan_gpu_launch(
        num_tokens=num_tokens,
        num_seqs=1,
        max_context=num_tokens,
        itemsize=2,
        num_q_heads=group,
        num_kv_heads=1,
        head_dim=head_dims[0],
        head_dim_v=head_dims[1],
        window=None,
        num_cores=8,
        threadgroup_memory_bytes=32768,
    )
    return -(-num_tokens * group // plan.prefill.tile_rows)


@pytest.mark.parametrize("group", range(1, 9))
def test_decode_reads_a_key_once_for_its_group(group: int) -> None:
    """Whether the keys are one split or many, and whichever sequences are beside it."""
    for spans in ([(1, 100)], [(1, 900)], [(1, 700), (1, 60), (1, 0)]):
        measured = amplification(spans=spans, group=group, num_kv_heads=2)
        assert 1.0 <= measured <= DECODE


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("head_dims", [(128, 128), (80, 80), (256, 256), (576, 512)])
def test_decode_of_any_size(head_dims: tuple[int, int], dtype: mx.Dtype) -> None:
    for group in (1, 4, 8):
        measured = amplification(
            spans=[(1, 300)], group=group, dtype=dtype, head_dims=head_dims, num_kv_heads=1
        )
        assert 1.0 <= measured <= DECODE


def test_values_within_the_keys_are_read_with_them() -> None:
    case = oracle.make_case(
        5, mx.float16, spans=[(1, 120)], num_kv_heads=1, group=16, head_dims=(576, 512)
    )
    case.v, case.v_cache = case.k[..., :512], case.k_cache[..., :512]
    arrays = case.mlx()
    arrays["v_cache"], arrays["v"] = arrays["k_cache"][..., :512], arrays["k"][..., :512]
    operators.scatter_paged_attention(**arrays, **case.mlx_options())
    assert 1.0 <= operators.last_launch().kv_read_amplification <= DECODE


@pytest.mark.parametrize(("num_tokens", "group"), [(16, 1), (40, 4), (90, 2), (7, 8)])
def test_prefill_reads_a_key_once_for_a_tile(num_tokens: int, group: int) -> None:
    for before in (0, 37, 300):
        measured = amplification(spans=[(num_tokens, before)], group=group, num_kv_heads=2)
        assert measured <= PREFILL * tiles(num_tokens, group, (64, 64))


def test_a_mixed_batch_reads_no_more() -> None:
    """A decode row among prefills, whose bytes are most of what is visible."""
    measured = amplification(spans=[(1, 900), (4, 20)], group=2, num_kv_heads=2)
    assert 1.0 <= measured <= DECODE


@pytest.mark.parametrize("num_tokens", [1, 8])
def test_what_lies_before_the_window_is_not_read(num_tokens: int) -> None:
    measured = amplification(
        spans=[(num_tokens, 8192 - num_tokens)], group=2, num_kv_heads=1, window=512
    )
    assert 1.0 <= measured <= WINDOWED


def test_a_kernel_for_each_query_head_shows_the_group() -> None:
    module, group = host.extension(), 4
    keys = mx.array(np.ones((32, 4), np.float32))
    commands = [
        ("pipeline", "per_head", PER_HEAD, "scores_of_a_head", "scores_of_a_head", {}),
        ("input", 0, 0, 0),
        ("input", 1, 1, 0),
        ("output", 0, 2, 0),
        ("dispatch_threadgroups", (group, 1, 1), (32, 1, 1)),
    ]
    host.take_launches()
    with host.execution(track_loads=True):
        mx.eval(
            module.run_script([mx.ones(group), keys], [((group * 32,), mx.float32, -1)], commands)
        )
    (launch,) = host.take_launches()
    assert launch.loaded_bytes(frozenset({1})) == group * keys.nbytes
