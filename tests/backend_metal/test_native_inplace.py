"""The native primitives in a graph: lazy, in place, ordered, and clear about what they refuse."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from backend_metal import _native, native
from backend_metal.attention.kv_cache import KVCachePool, LayerCacheSpec
from backend_metal.models.paged_model import PagedModel
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.native_cases import (
    as_numpy,
    attention,
    check_caches,
    check_out,
    run,
)
from tests.support.backend_metal.packed_step import Chunk, lazy_forward

BLOCK_SIZE = 16


def address(array: mx.array) -> int:
    return int(np.asarray(memoryview(array)).__array_interface__["data"][0])


def test_a_thousand_steps_stay_in_one_gigabyte() -> None:
    """Memory within 1%, addresses unchanged, whoever else still holds the old arrays."""
    specs = [LayerCacheSpec(8, 128, 128)]
    per_block = KVCachePool.bytes_per_block(specs, BLOCK_SIZE, mx.float32)
    shape = (2**30 // per_block, BLOCK_SIZE, 8, 128)
    caches = [mx.zeros(shape, mx.float32) for _ in range(2)]
    mx.eval(caches)
    held = list(caches)
    addresses = [address(cache) for cache in caches]
    rng = np.random.default_rng(0)
    tables = rng.permutation(shape[0])[: 4 * 64].reshape(4, 64).astype(np.int32)
    gc.collect()
    mx.clear_cache()
    active = mx.get_active_memory()
    mx.reset_peak_memory()
    for position in range(1000):
        slots = tables[:, position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        token = mx.full((4, 8, 128), position, mx.float32)
        out, *caches = native.scatter_paged_attention(
            mx.ones((4, 16, 128)),
            token,
            token,
            *caches,
            mx.array(slots),
            mx.array(tables),
            mx.full((4,), position + 1, mx.int32),
            mx.arange(5, dtype=mx.int32),
            scale=128**-0.5,
            window=32,
        )
        mx.eval(out, caches)
        del token
    del out
    assert mx.get_peak_memory() - active < 0.01 * 2**30
    assert mx.get_active_memory() - active < 0.01 * 2**30
    assert [address(cache) for cache in caches] == addresses
    assert [address(cache) for cache in held] == addresses
    written = np.asarray(memoryview(caches[1]))[tables[2]].reshape(-1, 8, 128)
    np.testing.assert_array_equal(written[:1000, 3, 7], np.arange(1000))


def steps_of(seed: int) -> tuple[oracle.Case, list[dict[str, mx.array]]]:
    """A prefill of two sequences and three decodes after it, as successive arguments."""
    rng = np.random.default_rng(seed)
    lengths = np.array([37, 5])
    tables = rng.permutation(12).reshape(2, 6)
    steps = []
    for new in ([37, 5], [1, 1], [1, 1], [1, 1]):
        starts = [0, 0] if new == [37, 5] else lengths
        positions = [np.arange(s, s + n) for s, n in zip(starts, new, strict=True)]
        lengths = np.array(starts) + new
        slots = [t[p // 8] * 8 + p % 8 for t, p in zip(tables, positions, strict=True)]
        floats = {"q": (sum(new), 4, 64), "k": (sum(new), 2, 64), "v": (sum(new), 2, 64)}
        step = {name: mx.array(rng.standard_normal(shape)) for name, shape in floats.items()}
        ints = {
            "slot_mapping": np.concatenate(slots),
            "block_tables": tables,
            "seq_lens": lengths,
            "cu_seqlens_q": np.cumsum([0, *new]),
        }
        steps.append(step | {name: mx.array(v.astype(np.int32)) for name, v in ints.items()})
    return steps


@pytest.mark.parametrize("evaluate", [mx.eval, mx.async_eval, lambda *_: None])
def test_steps_may_be_in_flight_together(evaluate: Callable[..., None]) -> None:
    """Evaluated one by one, handed over without waiting, or four steps in one graph: the same."""

    def outputs(evaluate: Callable[..., None]) -> list[np.ndarray]:
        caches = [mx.zeros((12, 8, 2, 64)) for _ in range(2)]
        outs = []
        for step in steps_of(4):
            out, *caches = native.scatter_paged_attention(
                **step, k_cache=caches[0], v_cache=caches[1], scale=0.125
            )
            evaluate(out, caches)
            outs.append(out)
        return [np.array(out) for out in outs]

    for out, want in zip(outputs(evaluate), outputs(mx.eval), strict=True):
        np.testing.assert_array_equal(out, want)


def test_a_model_step_is_one_graph() -> None:
    """Every layer's operator is still to be evaluated when the forward returns."""
    paged = PagedModel(*tiny_models.build("qwen3"))
    pool = KVCachePool(paged.layers, 8, 8, mx.float32)
    tokens = np.arange(20, dtype=np.int32)
    chunks = [Chunk(tokens, np.array([3, 1, 2], np.int32), 0, 20)]
    logits = lazy_forward(paged, pool, chunks)
    graph = io.StringIO()
    mx.export_to_dot(graph, logits)
    assert graph.getvalue().count("ScatterPagedAttention") == len(paged.cache_specs)
    mx.eval(logits)
    graph = io.StringIO()
    mx.export_to_dot(graph, logits)
    assert "ScatterPagedAttention" not in graph.getvalue()


def test_strides_past_31_bits() -> None:
    """Blocks 2^31 elements apart, in memory of which only a few pages are ever touched."""
    case = oracle.make_case(8, mx.float16, spans=[(1, 4), (3, 2)], num_kv_heads=1)
    num_blocks = len(case.k_cache)
    order = np.array([0, 1])
    case.block_tables = np.array([[0], [1]])
    case.slot_mapping = np.array([4, 8 + 2, 8 + 3, 8 + 4], np.int32)
    case.k_cache = np.nan_to_num(case.k_cache[:2])
    case.v_cache = np.nan_to_num(case.v_cache[:2])
    assert num_blocks >= len(order)
    far = _native.testing.uninitialized([2, 2**16, 2**9, 64], mx.float16)
    k_cache, v_cache = far[:, :8, :1], far[:, 8:16, 5:6]
    assert far.size // 2 == 2**31
    fill = mx.arange(16, dtype=mx.int32)
    values = [
        mx.array(cache).astype(mx.float16).reshape(16, 1, 64)
        for cache in (case.k_cache, case.v_cache)
    ]
    filled = native.reshape_and_cache(*values, k_cache, v_cache, fill)
    arrays = case.mlx() | dict(zip(("k_cache", "v_cache"), filled, strict=True))
    out, *caches = native.scatter_paged_attention(**arrays, **case.mlx_options())
    check_out(case, out, attention(case))
    check_caches(caches, oracle.scatter(case))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("slot_mapping", [0, 1, 4096], "slot_mapping must lie between 0 and 31, not 0 to 4096"),
        ("block_tables", [[0], [99]], "block_tables must lie between 0 and 3, not 0 to 99"),
        ("block_tables", [[0], [-1]], "block_tables must lie between 0 and 3, not -1 to 0"),
        ("seq_lens", [3, 50], "seq_lens must lie between 0 and 8, not 0 to 50"),
        ("cu_seqlens_q", [0, 1, 2], r"cu_seqlens_q must rise from 0 to num_tokens \(3\)"),
        ("cu_seqlens_q", [0, 4, 3], "cu_seqlens_q must rise"),
    ],
)
def test_indices_out_of_range_fail_the_evaluation(name: str, value: Any, message: str) -> None:
    case = oracle.make_case(0, mx.float32, spans=[(1, 2), (2, 3)])
    with pytest.raises(RuntimeError, match=message):
        run(case, **{name: mx.array(value, mx.int32)})
    # The stream goes on.
    check_out(case, run(case)[0], attention(case))


def test_a_cache_with_gaps_in_its_rows_is_refused() -> None:
    case = oracle.make_case(0, mx.float32, spans=[(1, 2)])
    gapped = mx.repeat(case.mlx()["k_cache"], 2, axis=-1)[..., ::2]
    with pytest.raises(ValueError, match="k_cache must have a contiguous last dimension"):
        run(case, k_cache=gapped)
    mx.eval(gapped)
    with pytest.raises(ValueError, match=r"k_cache must have .*, not one of stride 2"):
        native.check_cache_strides("k_cache", gapped)


def test_transformations_are_refused() -> None:
    case = oracle.make_case(0, mx.float32, spans=[(1, 2)])
    arrays = case.mlx()
    names = ("k_cache", "v_cache", "block_tables", "seq_lens", "cu_seqlens_q")
    rest = [arrays[name] for name in names]

    def attend(q: mx.array) -> mx.array:
        return native.paged_attention(q, *rest, scale=1.0)

    q = arrays["q"]
    with pytest.raises(
        RuntimeError, match="PagedAttention writes a cache in place and has no vmap"
    ):
        mx.vmap(attend)(q[None])
    with pytest.raises(RuntimeError, match="has no vjp"):
        mx.grad(lambda q: attend(q).sum())(q)
    with pytest.raises(RuntimeError, match="has no jvp"):
        mx.jvp(attend, [q], [q])


def test_equal_operators_are_merged_when_compiled() -> None:
    case = oracle.make_case(1, mx.float32, spans=[(1, 12)])
    arrays = case.mlx()
    k_cache, v_cache = (mx.array(np.nan_to_num(c)) for c in (case.k_cache, case.v_cache))
    names = ("block_tables", "seq_lens", "cu_seqlens_q")
    metadata = [arrays[name] for name in names]

    def twice(q: mx.array) -> mx.array:
        first = native.paged_attention(q, k_cache, v_cache, *metadata, scale=0.5)
        same = native.paged_attention(q, k_cache, v_cache, *metadata, scale=0.5)
        other = native.paged_attention(q, k_cache, v_cache, *metadata, scale=0.25)
        return first - same + other

    other = native.paged_attention(arrays["q"], k_cache, v_cache, *metadata, scale=0.25)
    np.testing.assert_array_equal(as_numpy(mx.compile(twice)(arrays["q"])), as_numpy(other))


@pytest.mark.parametrize("shape", [(3, 8, 1, 64), (3000, 16, 2, 64), (0, 8, 1, 64)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_cache_memory_is_zeroed_and_accounted_for(shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    mx.clear_cache()
    before = mx.get_active_memory()
    cache = native.zeros(shape, dtype)
    assert cache.shape == shape
    assert cache.dtype == dtype
    assert not as_numpy(cache).any()
    assert mx.get_active_memory() - before == pytest.approx(cache.nbytes, abs=2**14)


@pytest.mark.parametrize("num_bytes", [1, 100_000, 2**21 - 1, 2**22 + 17, 3 * 2**23])
def test_a_cache_is_zero_in_memory_that_was_used(num_bytes: int) -> None:
    """Linux zeroes whole pages of it alone."""
    for _ in range(3):
        used = native.zeros((num_bytes,), mx.uint8)
        assert not np.array(used).any()
        np.asarray(memoryview(used))[:] = 255
        del used
