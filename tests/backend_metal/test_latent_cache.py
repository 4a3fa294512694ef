"""Latents in the KV cache pool: one array, of which values are the head."""

from __future__ import annotations

import gc
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from backend_metal.attention.kv_cache import KVCachePool, LayerAttention, LayerCacheSpec
from backend_metal.attention.self_check import SelfCheckError, check_path
from backend_metal.device import CPU, REFERENCE, Device
from tests.support.backend_metal.broken_paths import BROKEN
from tests.support.backend_metal.packed_step import Chunk, metadata_of, relative_rms

SPEC = LayerCacheSpec(1, 576, 512, values_in_keys=True)
LAYER = LayerAttention(SPEC, num_q_heads=16, scale=192**-0.5)
# The same with its values in an array of their own.
APART = replace(LAYER, cache=replace(SPEC, values_in_keys=False))
BLOCK_SIZE = 8
PATHS = pytest.mark.parametrize("path", [CPU, REFERENCE], ids=lambda path: path.name)


def attend(pool: KVCachePool, table: np.ndarray, start: int, end: int) -> np.ndarray:
    """Tokens ``start`` to ``end``, the same for every pool."""
    rng = np.random.default_rng(start)
    q, k = (
        mx.array(rng.standard_normal((end - start, heads, 576), np.float32)) for heads in (16, 1)
    )
    _, metadata = metadata_of([Chunk(np.zeros(end), table, start, end)], BLOCK_SIZE)
    out = pool.attend(0, q, k, k[..., :512], metadata, scale=LAYER.scale)
    mx.eval(out, pool.evaluation_roots())
    return np.array(out)


def test_a_token_takes_one_row() -> None:
    assert KVCachePool.bytes_per_block([SPEC], 16, mx.bfloat16) == 16 * 1152
    before = mx.get_active_memory()
    pool = KVCachePool([LAYER], 64, BLOCK_SIZE, mx.float32)
    assert pool.nbytes == 64 * BLOCK_SIZE * 576 * 4
    assert mx.get_active_memory() - before == pytest.approx(pool.nbytes, rel=0.01)
    assert len(pool.evaluation_roots()) == 1


@PATHS
def test_chunks_and_decodes_give_what_two_arrays_give(path: Device) -> None:
    table = np.array([5, 2, 0, 7], np.int32)
    pool, apart = (
        KVCachePool([layer], 8, BLOCK_SIZE, mx.float32, path=path) for layer in (LAYER, APART)
    )
    for start, end in ((0, 11), (11, 12), (12, 29), (29, 30), (30, 31)):
        got, want = (attend(one, table, start, end) for one in (pool, apart))
        assert relative_rms(got, want) <= 1e-6
    # What evaluation_roots gave can be held instead, as after a recorded step.
    pool.rebind(pool.evaluation_roots())
    assert relative_rms(attend(pool, table, 31, 32), attend(apart, table, 31, 32)) <= 1e-6


@PATHS
def test_steps_never_copy_the_cache(path: Device) -> None:
    pool = KVCachePool([LAYER], 1024, BLOCK_SIZE, mx.float32, path=path)
    table = np.random.default_rng(3).permutation(1024)[:6].astype(np.int32)
    attend(pool, table, 0, 1)
    gc.collect()
    active = mx.get_active_memory()
    mx.reset_peak_memory()
    for position in range(1, 40):
        attend(pool, table, position, position + 1)
    assert mx.get_peak_memory() - active < pool.nbytes // 20


@PATHS
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_the_check_at_start_knows_them(path: Device, dtype: mx.Dtype) -> None:
    check_path(path, [LAYER], 16, dtype)


@pytest.mark.parametrize("fault", BROKEN)
def test_a_wrong_kernel_is_told(fault: str) -> None:
    with pytest.raises(SelfCheckError):
        check_path(BROKEN[fault], [LAYER], 16, mx.float32)


def test_a_failure_says_how_they_are_kept() -> None:
    with pytest.raises(SelfCheckError, match="head dims 576 and 512 in one array"):
        check_path(BROKEN["all of it slightly wrong"], [LAYER], 16, mx.float32)
