"""Every supported family: logits of the paged model against mlx-lm's dense model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.base import create_causal_mask

from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.models.families import gemma2
from backend_metal.models.families.table import FAMILIES
from backend_metal.models.paged_model import PagedModel
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.dense import (
    dense_logits,
    mixed_batches,
    mixed_batches_dense,
    tokens_of,
    worst_error,
)
from tests.support.backend_metal.packed_step import (
    Chunk,
    forward,
    relative_rms,
)
from tests.support.backend_metal.tiny_configs import FAMILY_CONFIGS, VARIANTS
from tests.support.tables import TABLE

# Gemma 2's window, which mlx-lm ignores, has its own test.
LIKE_MLX_LM = [*(FAMILIES.keys() - {"gemma2"}), *VARIANTS]


def test_every_family_has_a_tiny_model() -> None:
    assert FAMILIES.keys() == FAMILY_CONFIGS.keys()


def groups_of(model: PagedModel) -> str:
    """What a model keeps of a token, such as ``2 of 2x64 w16``: layers, heads, dims, window or
    chunk; and of a sequence, such as ``2 of 3x96 4x16x24``: layers, arrays."""
    counts = Counter(
        (spec.num_kv_heads, spec.head_dims, spec.values_in_keys, layer.window, layer.chunk)
        for layer in model.layers
        for spec in [layer.cache]
    )
    states = Counter(
        " ".join("x".join(map(str, array.shape)) for array in spec.arrays)
        for spec in model.recurrent
    )
    attention = [
        f"{count} of {heads}x{dims[0]}"
        + ("" if dims[0] == dims[1] else f"/{dims[1]}")
        + (" latent" if in_keys else "")
        + (f" w{window}" if window else "")
        + (f" c{chunk}" if chunk else "")
        for (heads, dims, in_keys, window, chunk), count in counts.items()
    ]
    return ", ".join([*attention, *(f"{count} of {arrays}" for arrays, count in states.items())])


@pytest.mark.parametrize("family", sorted(LIKE_MLX_LM))
def test_mixed_batches_match_the_dense_model(
    family: str, record_property: Callable[[str, object], None]
) -> None:
    """Chunked prefill and decode, three sequences of different progress in one step."""
    network, config = tiny_models.build(family)
    expected = mixed_batches_dense(network)
    model, actual = mixed_batches(network, config)
    worst = worst_error(actual, expected)
    record_property(TABLE, ("Logits against mlx-lm's", family, groups_of(model), f"{worst:.1e}"))
    assert worst <= 1e-5


@pytest.mark.parametrize(
    "family", ["deepseek_v3", "deepseek_v32", "deepseek_v32-320", "glm4_moe_lite", "mistral4"]
)
def test_long_chunks_of_latents_match_the_dense_model(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long enough that latents are decompressed, where tokens don't choose among them."""
    decompressed: list[int] = []
    attend_beside = KVCachePool.attend_beside

    def counted(pool: KVCachePool, q: mx.array, *args: mx.array, **options: float) -> mx.array:
        decompressed.append(q.shape[0])
        return attend_beside(pool, q, *args, **options)

    monkeypatch.setattr(KVCachePool, "attend_beside", counted)
    network, config = tiny_models.build(family)
    sequences = [tokens_of(760, 1), tokens_of(30, 2)]
    expected = [
        dense_logits(network, sequences[0], [360, 759, 760]),
        dense_logits(network, sequences[1], [29, 30]),
    ]
    model = PagedModel(network, config)
    pool = KVCachePool(model.layers, num_blocks=99, block_size=8, dtype=model.dtype)
    order = np.random.default_rng(7).permutation(99).astype(np.int32)
    tables = [order[:95], order[95:]]
    parts: list[list[np.ndarray]] = [[], []]
    for step in ({0: (0, 360)}, {1: (0, 29), 0: (360, 759)}, {0: (759, 760), 1: (29, 30)}):
        chunks = [Chunk(sequences[seq], tables[seq], *span) for seq, span in step.items()]
        for seq, rows in zip(step, forward(model, pool, chunks), strict=True):
            parts[seq].append(rows)
    for own, want in zip(parts, expected, strict=True):
        assert relative_rms(np.concatenate(own), want) <= 1e-5
    # What chooses among few keys has no long chunks that see all that there are.
    longest = {"deepseek_v32": [], "deepseek_v32-320": [320, 320]}
    assert decompressed == longest.get(family, [360, 360, 399, 399])


def gemma2_with_window(model: nn.Module, tokens: np.ndarray, windows: list[int | None]) -> mx.array:
    """mlx-lm's layers, looped by hand with the mask that each was trained with."""
    hidden = model.model.embed_tokens(mx.array(tokens[None])) * model.args.hidden_size**0.5
    for layer, window in zip(model.layers, windows, strict=True):
        mask = create_causal_mask(len(tokens), window_size=window)
        hidden = layer(hidden, mask)
    out = model.model.embed_tokens.as_linear(model.model.norm(hidden))
    return (mx.tanh(out / model.final_logit_softcapping) * model.final_logit_softcapping)[0]


def test_gemma2_keeps_its_window_on_even_layers() -> None:
    network, config = tiny_models.build("gemma2")
    tokens = tokens_of(60, 3)
    expected = np.array(gemma2_with_window(network, tokens, [tiny_models.WINDOW, None]))
    unbounded = np.array(network(mx.array(tokens[None]))[0])
    model = PagedModel(network, config)
    pool = KVCachePool(model.layers, num_blocks=8, block_size=8, dtype=model.dtype)
    table = np.array([3, 6, 1, 0, 7, 2, 5, 4], np.int32)
    actual = [
        forward(model, pool, [Chunk(tokens, table, start, end)])[0]
        for start, end in ((0, 25), (25, 58), (58, 59), (59, 60))
    ]
    assert relative_rms(np.concatenate(actual), expected) <= 1e-5
    assert relative_rms(np.concatenate(actual), unbounded) > 0.1


def test_gemma2_windows_by_config() -> None:
    assert gemma2.layer_windows({"sliding_window": 8}, 3) == [8, None, 8]
    assert gemma2.layer_windows({}, 2) == [None, None]
    listed = {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}
    assert gemma2.layer_windows(listed, 2) == [None, 8]


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "gpt_oss"])
def test_fragmented_shared_tables_stay_on_the_dense_logits(family: str) -> None:
    """Decode steps of two sequences that share their first blocks, in a shuffled pool."""
    network, config = tiny_models.build(family)
    prompt = tokens_of(33, 1)
    sequences = [np.concatenate([prompt, tokens_of(60, seed)]) for seed in (2, 3)]
    expected = [dense_logits(network, tokens, [len(tokens)]) for tokens in sequences]
    model = PagedModel(network, config)
    pool = KVCachePool(model.layers, num_blocks=64, block_size=8, dtype=model.dtype)
    order = np.random.default_rng(5).permutation(64).astype(np.int32)
    shared, own = order[:4], order[4:60].reshape(2, -1)
    tables = [np.concatenate([shared, own[i]]) for i in range(2)]

    forward(model, pool, [Chunk(sequences[0], tables[0], 0, 33)])
    # The second sequence computes only what lies past the shared, full blocks.
    forward(model, pool, [Chunk(sequences[1], tables[1], 32, 33)])
    for position in range(33, 93):
        rows = forward(
            model,
            pool,
            [
                Chunk(tokens, table, position, position + 1)
                for tokens, table in zip(sequences, tables, strict=True)
            ],
        )
        for row, want in zip(rows, expected, strict=True):
            assert relative_rms(row[0], want[position]) <= 5e-3


def test_a_wrong_block_table_shows() -> None:
    """The parity tests would notice: their models attend to what the table points at."""
    network, config = tiny_models.build("llama")
    tokens = tokens_of(33, 0)
    expected = dense_logits(network, tokens, [33])
    model = PagedModel(network, config)
    pool = KVCachePool(model.layers, num_blocks=8, block_size=8, dtype=model.dtype)
    table = np.arange(5, dtype=np.int32)
    forward(model, pool, [Chunk(tokens, table, 0, 32)])
    wrong = table[[1, 0, 2, 3, 4]]
    row = forward(model, pool, [Chunk(tokens, wrong, 32, 33)])[0]
    # Keys carry their positions, so a permuted table is the same set of keys ...
    assert relative_rms(row[0], expected[32]) <= 1e-5
    # ... and a table with a foreign block is not.
    row = forward(model, pool, [Chunk(tokens, np.array([6, 1, 2, 3, 4], np.int32), 32, 33)])[0]
    assert relative_rms(row[0], expected[32]) > 0.05
