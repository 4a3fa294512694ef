"""The check at start runs every kernel that a GPU's launch plan can choose for the model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import pytest

from backend_metal import native
from backend_metal.attention.kv_cache import LayerAttention, LayerCacheSpec
from backend_metal.attention.self_check import check_path
from backend_metal.device import CPU
from tests.support.backend_metal.changed_device import changed
from tests.support.fuzzing import EVERY_EXAMPLE

CORES = (8, 10, 20, 40, 80)
BLOCK_SIZE = 16


def layer(num_kv_heads: int, group: int, dim: int, window: int | None = None) -> LayerAttention:
    spec = LayerCacheSpec(num_kv_heads, dim, dim)
    return LayerAttention(spec, num_kv_heads * group, dim**-0.5, window)


LAYERS = [
    layer(num_kv_heads, group, dim, window)
    for num_kv_heads, group, dim in (
        (8, 2, 128),
        (8, 4, 128),
        (2, 6, 128),
        (32, 1, 96),
        (1, 4, 256),
        (1, 12, 512),
        (8, 8, 64),
        (2, 16, 128),
        (1, 20, 64),
    )
    for window in (None, 1024, *((128, 4096) if EVERY_EXAMPLE else ()))
]
LAYERS += [
    LayerAttention(LayerCacheSpec(1, 576, 512, values_in_keys=True), num_heads, 192**-0.5)
    for num_heads in (16, 20, 64, 128)
]


def choices(layer: LayerAttention, dtype: mx.Dtype, num_cores: int, **batch: Any) -> set[object]:
    """The kernels of one launch, and whether each of them has splits."""
    plan = native.plan_gpu_launch(
        itemsize=dtype.size,
        num_q_heads=layer.num_q_heads,
        num_kv_heads=layer.cache.num_kv_heads,
        head_dim=layer.cache.head_dim,
        head_dim_v=layer.cache.head_dim_v,
        num_cores=num_cores,
        threadgroup_memory_bytes=32768,
        **batch,
    )
    dispatches = {
        ("decode", plan.decode.row_tiles, plan.decode.num_partials > 0): plan.decode.grid,
        ("reduce",): plan.reduce,
        ("prefill", plan.prefill.num_partials > 0): plan.prefill.grid,
        ("prefill_reduce",): plan.prefill.reduce,
    }
    return {name for name, grid in dispatches.items() if all(grid.threadgroups)}


def batches_of_the_check(layer: LayerAttention, dtype: mx.Dtype) -> list[dict[str, Any]]:
    batches = []

    def spied(**arguments: Any) -> Any:
        batches.append(
            {
                "num_tokens": arguments["q"].shape[0],
                "num_seqs": arguments["seq_lens"].size,
                "max_context": arguments["block_tables"].shape[1] * BLOCK_SIZE,
                "window": arguments["window"],
            }
        )
        return CPU.scatter_paged_attention(**arguments)

    check_path(changed(CPU, scatter_paged_attention=spied), [layer], BLOCK_SIZE, dtype)
    return batches


def batches_of_an_engine(layer: LayerAttention) -> Iterable[dict[str, Any]]:
    for num_seqs, extra, max_context in itertools.product(
        (1, 2, 3, 8, 32, 256),
        (0, 1, 15, 100, 2000),
        (16, 64, 256, 1024, 4096, 131072),
    ):
        yield {
            "num_tokens": num_seqs + extra,
            "num_seqs": num_seqs,
            "max_context": max_context,
            "window": layer.window,
        }


@pytest.mark.parametrize("dtype", [mx.bfloat16])
@pytest.mark.parametrize("layer", LAYERS)
def test_it_runs_what_an_engine_may_run(layer: LayerAttention, dtype: mx.Dtype) -> None:
    checked = batches_of_the_check(layer, dtype)
    for num_cores in CORES:
        met = set().union(*(choices(layer, dtype, num_cores, **batch) for batch in checked))
        for batch in batches_of_an_engine(layer):
            missing = choices(layer, dtype, num_cores, **batch) - met
            assert not missing, (num_cores, batch)
