"""The KV cache pool: its figures, its memory, and that it updates in place."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from backend_metal.attention import kv_cache, operators
from backend_metal.attention.kv_cache import (
    GroupedMetadata,
    KVCachePool,
    LayerAttention,
    LayerCacheSpec,
)
from backend_metal.attention.kv_groups import KVGroup
from backend_metal.device import Device
from tests.support.backend_metal.packed_step import Chunk, metadata_of

SPECS = (LayerCacheSpec(2, 64, 64), LayerCacheSpec(1, 128, 64))
LAYERS = tuple(LayerAttention(spec, 2 * spec.num_kv_heads, spec.head_dim**-0.5) for spec in SPECS)
BLOCK_SIZE = 8


PATHS = pytest.mark.parametrize("path", ["cpu", "reference"])


def make_pool(
    num_blocks: int = 4, dtype: mx.Dtype = mx.float32, path: Device | None = None
) -> KVCachePool:
    return KVCachePool(LAYERS, num_blocks, BLOCK_SIZE, dtype, path=path)


def step(table: list[int], start: int, end: int) -> GroupedMetadata:
    chunk = Chunk(np.zeros(end, np.int32), np.array(table, np.int32), start, end)
    return metadata_of([chunk], BLOCK_SIZE)[1]


def heads(seed: int, num_tokens: int, num_heads: int, dim: int) -> mx.array:
    values = np.random.default_rng(seed).standard_normal((num_tokens, num_heads, dim))
    return mx.array(values.astype(np.float32))


def attend(pool: KVCachePool, layer: int, metadata: GroupedMetadata, seed: int) -> mx.array:
    """Store and attend; the queries are always the same."""
    spec, num_tokens = SPECS[layer], metadata[0].slot_mapping.size
    return pool.attend(
        layer,
        heads(0, num_tokens, 2 * spec.num_kv_heads, spec.head_dim),
        heads(seed, num_tokens, spec.num_kv_heads, spec.head_dim),
        heads(seed + 1, num_tokens, spec.num_kv_heads, spec.head_dim_v),
        metadata,
        scale=spec.head_dim**-0.5,
    )


def run(pool: KVCachePool, metadata: GroupedMetadata, seed: int) -> list[np.ndarray]:
    outs = [attend(pool, layer, metadata, seed) for layer in range(len(SPECS))]
    mx.eval(outs, pool.evaluation_roots())
    return [np.array(out) for out in outs]


def test_bytes() -> None:
    elements = 2 * (64 + 64) + 1 * (128 + 64)
    assert KVCachePool.bytes_per_block(SPECS, 16, mx.bfloat16) == elements * 16 * 2
    before = mx.get_active_memory()
    pool = make_pool(num_blocks=64)
    assert pool.nbytes == elements * BLOCK_SIZE * 4 * 64
    assert mx.get_active_memory() - before == pytest.approx(pool.nbytes, rel=0.01)


def test_chunks_give_what_one_prefill_gives() -> None:
    whole = run(make_pool(), step([2, 0], 0, 12), seed=5)
    pool = make_pool()
    metadata = step([2, 0], 0, 12)
    for layer, spec in enumerate(SPECS):
        q = heads(0, 12, 2 * spec.num_kv_heads, spec.head_dim)
        k = heads(5, 12, spec.num_kv_heads, spec.head_dim)
        v = heads(6, 12, spec.num_kv_heads, spec.head_dim_v)
        parts = [
            pool.attend(
                layer, q[a:b], k[a:b], v[a:b], step([2, 0], a, b), scale=spec.head_dim**-0.5
            )
            for a, b in ((0, 7), (7, 11), (11, 12))
        ]
        assert metadata[0].slot_mapping.size == 12
        np.testing.assert_allclose(
            np.array(mx.concatenate(parts)), whole[layer], rtol=1e-5, atol=1e-6
        )


@PATHS
def test_steps_never_copy_the_cache(path: Device) -> None:
    """200 steps over a 15 MB pool: memory stays where it was, far from a second cache."""
    pool = make_pool(num_blocks=1024, path=path)
    run(pool, step([5], 0, 1), seed=1)
    gc.collect()
    active = mx.get_active_memory()
    mx.reset_peak_memory()
    table = np.random.default_rng(3).permutation(1024)[:26].tolist()
    for position in range(200):
        run(pool, step(table, position, position + 1), seed=position)
    assert mx.get_peak_memory() - active < pool.nbytes // 20
    assert mx.get_active_memory() - active < 4096


def test_reset_forgets_also_a_graph_that_cannot_run() -> None:
    pool = make_pool()
    fresh = run(make_pool(), step([0], 0, 3), seed=1)
    attend(pool, 0, step([0], 0, 8), seed=7)
    pool.reset()
    assert not any(np.array(array).any() for array in pool.evaluation_roots())
    for out, want in zip(run(pool, step([0], 0, 3), seed=1), fresh, strict=True):
        np.testing.assert_array_equal(out, want)


def test_the_result_keeps_the_queries_dtype() -> None:
    pool = make_pool(dtype=mx.float16)
    assert attend(pool, 0, step([1], 0, 2), seed=1).dtype == mx.float32


def test_layers_with_the_same_window_have_one_table_and_as_many_blocks() -> None:
    windows = (16, None, 4, 16)
    layers = [replace(LAYERS[0], window=window) for window in windows]
    pool = KVCachePool(layers, [5, 3, 2], BLOCK_SIZE, mx.float32)
    assert pool.groups == (KVGroup(None, (1,)), KVGroup(16, (0, 3)), KVGroup(4, (2,)))
    assert [array.shape[0] for array in pool.evaluation_roots(4)] == 2 * [3, 5, 2, 3]
    of_a_block = KVCachePool.bytes_per_block(SPECS[:1], BLOCK_SIZE, mx.float32)
    assert pool.nbytes == sum(array.nbytes for array in pool.evaluation_roots())
    assert pool.nbytes == (5 + 2 * 3 + 2) * of_a_block


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks must be at least 1"):
        make_pool(num_blocks=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_q_heads": 3}, "q must have a multiple of k_cache's 2 heads, not 3"),
        ({"scale": float("nan")}, "scale must be finite, not nan"),
        ({"window": 0}, "window must be at least 1, not 0"),
        ({"softcap": -1.0}, "softcap must be finite and more than 0"),
    ],
)
def test_a_layer_that_the_operators_would_refuse_is_refused_at_once(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        KVCachePool([LAYERS[1], replace(LAYERS[0], **change)], 4, BLOCK_SIZE, mx.float32)


def test_a_block_size_without_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match="k_cache must have a block size in"):
        KVCachePool(LAYERS, 4, 5, mx.float32)


def test_steps_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool()
    checks = []
    for name in ("check_scatter", "check_attention"):
        for module in (kv_cache, operators):
            monkeypatch.setattr(module, name, lambda *args, name=name, **kw: checks.append(name))
    launches = operators.attention_launches()["cpu"]
    run(pool, step([1], 0, 3), seed=1)
    assert operators.attention_launches()["cpu"] == launches + len(SPECS)
    assert not checks
