"""Every kernel that the launch plan of a GPU can choose, and steps that make it choose them."""

from __future__ import annotations

import itertools

import mlx.core as mx

from backend_metal import native
from backend_metal.attention.head_dims import HEAD_DIMS, WIDE_HEAD_DIMS
from tests.metal_on_cpu import host, operators
from tests.metal_on_cpu.parity import check
from tests.support.backend_metal.native_cases import make_case

METAL_TYPES = {"float32": "float", "float16": "half", "bfloat16": "bfloat"}
ALL_HEAD_DIMS = [*itertools.product(HEAD_DIMS, HEAD_DIMS), *WIDE_HEAD_DIMS]
GROUPS = range(1, 65)
# Enough cores that a few rows alone can't fill them, so that prefills split their keys, too.
CORE_COUNT = 76
# Decode over several splits, and a prefill of few rows over several splits.
SPANS = [(1, 700), (9, 1100)]


def plan_of(head_dims: tuple[int, int], dtype: mx.Dtype, group: int) -> object:
    return native.plan_gpu_launch(
        num_tokens=sum(query for query, _ in SPANS),
        num_seqs=len(SPANS),
        max_context=2048,
        itemsize=dtype.size,
        num_q_heads=group,
        num_kv_heads=1,
        head_dim=head_dims[0],
        head_dim_v=head_dims[1],
        window=None,
        num_cores=CORE_COUNT,
        threadgroup_memory_bytes=32768,
    )


def expected_kernels(head_dims: tuple[int, int], dtype_name: str) -> set[str]:
    """Names of all attention kernels for these head dims, whatever the group."""
    metal_type = METAL_TYPES[dtype_name]
    both = f"{metal_type}_{head_dims[0]}_{head_dims[1]}"
    row_tiles = {
        plan_of(head_dims, getattr(mx, dtype_name), group).decode.row_tiles for group in GROUPS
    }
    return {
        f"prefill_{both}",
        f"prefill_reduce_{both}",
        f"reduce_{metal_type}_{head_dims[1]}",
        *(f"decode_{both}_{tiles}" for tiles in row_tiles),
    }


def run_kernels(head_dims: tuple[int, int], dtype_name: str) -> set[str]:
    """Compare steps of these head dims with the reference; the names of the kernels that ran."""
    ran: set[str] = set()
    for seed, group in enumerate((1, 12)):
        case = make_case(
            seed,
            heads=(1, group),
            has_sinks=True,
            dtype=getattr(mx, dtype_name),
            head_dims=head_dims,
            spans=SPANS,
            block_size=(8, 16, 32)[sum(head_dims) % 3],
            window=(None, 600)[seed],
            softcap=(20.0, None)[seed],
        )
        with host.gpu(core_count=CORE_COUNT):
            check(case)
            operators.scatter_paged_attention(**case.mlx(), **case.mlx_options())
        ran.update(operators.last_launch().kernels)
    return {kernel for kernel in ran if not kernel.startswith("scatter")}
