"""The seam into mlx-lm models: what it leaves alone, what it refuses, and that it stays lazy."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from threading import Thread
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from backend_metal.attention.kv_cache import KVCachePool, LayerCacheSpec
from backend_metal.attention.operators import attention_launches
from backend_metal.models.layers.fused_projections import joined_layers
from backend_metal.models.paged_model import PagedModel
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.packed_step import (
    Chunk,
    forward,
    ints,
    lazy_forward,
    metadata_of,
    relative_rms,
)

TOKENS = np.arange(20, dtype=np.int32) * 13 % tiny_models.VOCAB_SIZE
TABLE = np.array([2, 0, 3], np.int32)


def paged(family: str) -> tuple[PagedModel, KVCachePool]:
    model = PagedModel(*tiny_models.build(family))
    return model, KVCachePool(model.layers, num_blocks=4, block_size=8, dtype=model.dtype)


def in_thread(make: Callable[[], Any]) -> Any:
    """What ``make`` returns in a thread that is gone afterwards."""
    results: list[Any] = []
    thread = Thread(target=lambda: results.append(make()))
    thread.start()
    thread.join()
    return results[0]


def test_what_tracing_learns() -> None:
    model = PagedModel(*tiny_models.build("qwen3"))
    assert model.cache_specs == (LayerCacheSpec(2, 64, 64),) * 2
    assert model.dtype == mx.float32
    assert model.vocab_size == tiny_models.VOCAB_SIZE
    network, config = tiny_models.build("qwen3")
    network.set_dtype(mx.bfloat16)
    assert PagedModel(network, config).dtype == mx.bfloat16


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "exaone", "gemma3n", "mistral4"])
def test_the_model_still_works_with_its_own_caches(family: str) -> None:
    network, config = tiny_models.build(family)
    names = [name for name, _ in tree_flatten(network.parameters())]
    before = network(mx.array(TOKENS[None]))
    PagedModel(network, config)
    # Twice, as when one process loads two models of a family.
    PagedModel(network, config)
    assert mx.array_equal(network(mx.array(TOKENS[None])), before)
    # Weights that products share or read in another order are elsewhere, and nothing else is.
    kept = [name.replace(".panels", ".weight") for name, _ in tree_flatten(network.parameters())]
    assert kept == [name for name in names if name in kept]
    joined = [part for _, parts in joined_layers(network) for part in parts]
    assert len(names) - len(kept) == sum("weight" not in part for part in joined)


@pytest.mark.parametrize(
    "family", ["qwen3", "gemma2", "gpt_oss", "qwen3_moe", "gemma3n", "mistral4"]
)
def test_a_forward_evaluates_nothing(family: str) -> None:
    """Arrays of a thread that is gone can't be evaluated, so whoever tries is caught."""
    model, pool = paged(family)
    positions, metadata = metadata_of([Chunk(TOKENS, TABLE, 0, 20)], pool.block_size)
    poisoned = in_thread(lambda: ints(TOKENS) + 0)
    logits, _ = model(poisoned, ints(positions), metadata, ints([19]), pool)
    assert logits.shape == (1, tiny_models.VOCAB_SIZE)
    with pytest.raises(RuntimeError, match="no Stream"):
        mx.eval(logits)


@pytest.mark.parametrize("rows", [[], [19], [3, 3, 0], list(range(20))])
def test_only_the_rows_asked_for_reach_the_head(rows: list[int]) -> None:
    for family in ("qwen3", "granite", "gemma2", "gemma3n"):
        model, pool = paged(family)
        everything = forward(model, pool, [Chunk(TOKENS, TABLE, 0, 20)])[0]
        pool.reset()
        positions, metadata = metadata_of([Chunk(TOKENS, TABLE, 0, 20)], pool.block_size)
        logits, states = model(ints(TOKENS), ints(positions), metadata, ints(rows), pool)
        mx.eval(logits, pool.evaluation_roots())
        assert logits.shape == (len(rows), tiny_models.VOCAB_SIZE)
        assert states.shape == (len(TOKENS), model.state_size)
        if rows:
            assert relative_rms(np.array(logits), everything[rows]) <= 1e-5


def test_a_prefill_without_logits_fills_the_cache() -> None:
    model, pool = paged("llama")
    expected = forward(model, pool, [Chunk(TOKENS, TABLE, 0, 20)])[0][16:]
    pool.reset()
    positions, metadata = metadata_of([Chunk(TOKENS, TABLE, 0, 16)], pool.block_size)
    model(ints(TOKENS[:16]), ints(positions), metadata, ints([]), pool)
    mx.eval(pool.evaluation_roots())
    actual = forward(model, pool, [Chunk(TOKENS, TABLE, 16, 20)])[0]
    assert relative_rms(actual, expected) <= 1e-5


@pytest.mark.parametrize(
    ("family", "num_layers", "num_caches"),
    [("smollm3", 4, 4), ("gemma4_text", 6, 3), ("gemma3n", 4, 2), ("nemotron-nas", 2, 2)],
)
def test_one_attention_launch_a_layer(family: str, num_layers: int, num_caches: int) -> None:
    """Layers that attend over another one's cache own none."""
    model, pool = paged(family)
    before = sum(attention_launches().values())
    lazy_forward(model, pool, [Chunk(TOKENS, TABLE, 0, 20)])
    assert sum(attention_launches().values()) - before == num_layers
    assert len(model.cache_specs) == num_caches


def test_a_step_copies_no_cache() -> None:
    model = PagedModel(*tiny_models.build("gpt_oss"))
    pool = KVCachePool(model.layers, num_blocks=4096, block_size=8, dtype=model.dtype)
    forward(model, pool, [Chunk(TOKENS, TABLE, 0, 8)])
    gc.collect()
    active = mx.get_active_memory()
    mx.reset_peak_memory()
    for position in range(8, 20):
        forward(model, pool, [Chunk(TOKENS, TABLE, position, position + 1)])
    assert mx.get_peak_memory() - active < pool.nbytes // 20


@pytest.mark.parametrize("family", ["llama", "gemma3n", "mistral4", "llama4"])
def test_a_step_leaves_nothing_for_the_garbage_collector(family: str) -> None:
    """Its arrays would stay until Python looks for cycles."""
    model, pool = paged(family)
    forward(model, pool, [Chunk(TOKENS, TABLE, 0, 8)])
    gc.collect()
    gc.disable()
    try:
        active = mx.get_active_memory()
        for position in range(8, 20):
            forward(model, pool, [Chunk(TOKENS, TABLE, position, position + 1)])
        assert mx.get_active_memory() - active < 4096
    finally:
        gc.enable()


def test_attention_of_other_code_falls_through() -> None:
    """The stand-in passes any other cache on, sinks and all."""
    PagedModel(*tiny_models.build("gpt_oss"))
    module = importlib.import_module("mlx_lm.models.gpt_oss")
    base = importlib.import_module("mlx_lm.models.base")
    q, k = (mx.random.normal((1, heads, 5, 64), key=mx.random.key(heads)) for heads in (4, 2))
    arguments = SimpleNamespace(cache=None, scale=0.1, mask="causal", sinks=mx.ones(4))
    stand_in = module.scaled_dot_product_attention
    assert stand_in is not base.scaled_dot_product_attention
    assert mx.array_equal(
        stand_in(q, k, k, **vars(arguments)),
        base.scaled_dot_product_attention(q, k, k, **vars(arguments)),
    )
