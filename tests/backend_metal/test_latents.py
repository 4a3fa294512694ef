"""Attention to latents, however a step's tokens are divided, against float64 over every key."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.mla import MultiLinear

from backend_metal.attention import latent_parts
from backend_metal.attention.kv_cache import KVCachePool, LayerAttention
from backend_metal.attention.latent_parts import (
    DecompressionRule,
    IndexSize,
    LatentParts,
    divide,
)
from backend_metal.device import CPU, REFERENCE, Device
from backend_metal.devices.recording import being_recorded
from backend_metal.models.layers import latents as latents_module
from backend_metal.models.layers.latents import IndexStep, LatentAttention
from backend_metal.models.layers.mla import Heads
from tests.support.backend_metal.changed_device import changed
from tests.support.backend_metal.packed_step import Chunk, metadata_of, relative_rms

BLOCK_SIZE = 8
NUM_HEADS, LATENT, ROTARY, NOPE, VALUE = 3, 64, 16, 64, 64
INDEX_HEADS, INDEX_DIM = 24, 16
PATHS = pytest.mark.parametrize("path", [CPU, REFERENCE], ids=lambda path: path.name)
FROM_FEW = DecompressionRule(absorbed=1, decompressed=0, decompression=1)
"""Even a chunk of five tokens has its context decompressed."""


@dataclass(frozen=True)
class RuledHeads(Heads):
    own_rule: DecompressionRule

    @property
    def rule(self) -> DecompressionRule:
        return self.own_rule


class Layer:
    """Latents of sequences, and what attention to them is."""

    def __init__(self, lengths: list[int], seed: int) -> None:
        rng = np.random.default_rng(seed)
        mx.random.seed(seed)
        self.scale = 0.3
        self.module = SimpleNamespace(
            num_heads=NUM_HEADS,
            scale=self.scale,
            kv_lora_rank=LATENT,
            qk_nope_head_dim=NOPE,
            qk_rope_head_dim=ROTARY,
            v_head_dim=VALUE,
            embed_q=MultiLinear(NOPE, LATENT, NUM_HEADS),
            unembed_out=MultiLinear(LATENT, VALUE, NUM_HEADS),
        )

        def normal(length: int, *shape: int) -> np.ndarray:
            return rng.standard_normal((length, *shape)).astype(np.float32)

        self.latents = [normal(length, 1, LATENT + ROTARY) for length in lengths]
        self.queries = [normal(length, NUM_HEADS, NOPE + ROTARY) for length in lengths]
        self.index_k = [normal(length, 1, INDEX_DIM) for length in lengths]
        self.index_q = [normal(length, INDEX_HEADS, INDEX_DIM) for length in lengths]
        self.weights = [normal(length, INDEX_HEADS) for length in lengths]

    def expected(self, seq: int, position: int, top_k: int | None) -> np.ndarray:
        """``[heads, value_dim]`` of one token, with keys and values of each head."""
        latents = self.latents[seq][: position + 1, 0].astype(np.float64)
        embed = np.array(self.module.embed_q.weight).astype(np.float64)
        unembed = np.array(self.module.unembed_out.weight).astype(np.float64)
        keys = np.einsum("kl,hln->hkn", latents[:, :LATENT], embed)
        rotary = np.broadcast_to(latents[:, LATENT:], (NUM_HEADS, position + 1, ROTARY))
        values = np.einsum("kl,hvl->hkv", latents[:, :LATENT], unembed)
        q = self.queries[seq][position].astype(np.float64)
        scores = np.einsum("hd,hkd->hk", q, np.concatenate([keys, rotary], -1)) * self.scale
        if top_k is not None and position >= top_k:
            scores[:, self._worst(seq, position, top_k)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hk,hkv->hv", weights, values)

    def _worst(self, seq: int, position: int, top_k: int) -> np.ndarray:
        keys = self.index_k[seq][: position + 1, 0].astype(np.float64)
        products = np.maximum(self.index_q[seq][position].astype(np.float64) @ keys.T, 0)
        scores = self.weights[seq][position].astype(np.float64) @ products
        order = np.argsort(scores)
        # A tie would make the expectation one of several.
        assert scores[order[-top_k]] > scores[order[-top_k - 1]] + 1e-6 * np.abs(scores).max()
        return order[:-top_k]


def run(
    layer: Layer,
    steps: list[list[tuple[int, int, int]]],
    path: Device,
    *,
    top_k: int | None,
    rule: DecompressionRule,
) -> list[np.ndarray]:
    """Each sequence's results; ``steps``: which sequences run from where to where."""
    heads = RuledHeads(layer.module, mx.array(layer.queries[0]), rule)
    asked: list[LayerAttention] = [heads.asks()]
    if top_k is not None:
        step = IndexStep(1, *(mx.array(a[0]) for a in (layer.index_q, layer.index_k)), None, top_k)
        asked.append(step.asks())
    most = [-(-len(latents) // BLOCK_SIZE) for latents in layer.latents]
    num_blocks = sum(most) + 1
    pool = KVCachePool(asked, num_blocks, BLOCK_SIZE, mx.float32, path=path)
    order = np.random.default_rng(5).permutation(num_blocks).astype(np.int32)
    tables = np.split(order[: sum(most)], np.cumsum(most)[:-1])
    outs: list[list[np.ndarray]] = [[] for _ in layer.latents]
    for spans in steps:
        chunks = [Chunk(np.zeros(end), tables[seq], start, end) for seq, start, end in spans]
        _, metadata = metadata_of(chunks, BLOCK_SIZE, pool.groups)

        def packed(arrays: list[np.ndarray], spans: list[tuple[int, int, int]] = spans) -> mx.array:
            return mx.array(np.concatenate([arrays[seq][a:b] for seq, a, b in spans]))

        index = None
        if top_k is not None:
            parts = (packed(a) for a in (layer.index_q, layer.index_k, layer.weights))
            index = IndexStep(1, *parts, top_k)
        heads = RuledHeads(layer.module, packed(layer.queries), rule)
        out = LatentAttention(pool, metadata).attend(0, heads, packed(layer.latents), index)
        mx.eval(out, pool.evaluation_roots())
        ends = np.cumsum([end - start for _, start, end in spans])[:-1]
        for (seq, _, _), rows in zip(spans, np.split(np.array(out), ends), strict=True):
            outs[seq].append(rows)
    return [np.concatenate(rows) for rows in outs]


NEVER = DecompressionRule(absorbed=0, decompressed=0, decompression=1)
STEPS = [
    [(0, 0, 30), (1, 0, 3), (2, 0, 1)],
    [(1, 3, 29), (0, 30, 31), (2, 1, 9)],
    [(0, 31, 32), (1, 29, 30), (2, 9, 10)],
    [(2, 10, 12), (1, 30, 33), (0, 32, 41)],
]


@PATHS
@pytest.mark.parametrize("rule", [NEVER, FROM_FEW], ids=["absorbed", "decompressed"])
@pytest.mark.parametrize("top_k", [None, 7, 20, 64])
def test_chunks_and_decodes_give_what_every_key_gives(
    path: Device, rule: DecompressionRule, top_k: int | None
) -> None:
    layer = Layer([41, 33, 12], seed=3)
    outs = run(layer, STEPS, path, top_k=top_k, rule=rule)
    for seq, out in enumerate(outs):
        want = np.stack([layer.expected(seq, position, top_k) for position in range(len(out))])
        assert relative_rms(out, want) <= 1e-5


def test_what_was_not_chosen_shows() -> None:
    """A model that attended to everything would be told."""
    layer = Layer([41, 33, 12], seed=3)
    (dense, *_), (sparse, *_) = (
        run(layer, STEPS, CPU, top_k=top_k, rule=NEVER) for top_k in (None, 7)
    )
    assert relative_rms(sparse[:7], dense[:7]) <= 1e-5
    assert relative_rms(sparse[7:], dense[7:]) > 0.1


@pytest.mark.parametrize("most", [1, 1000, 20_000])
def test_whatever_is_computed_at_a_time(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer([41, 33, 12], seed=4)
    want = run(layer, STEPS, CPU, top_k=7, rule=FROM_FEW)
    monkeypatch.setattr(latent_parts, "MOST_ELEMENTS", most)
    monkeypatch.setattr(latents_module, "MOST_DECOMPRESSED", most)
    for got, expected in zip(run(layer, STEPS, CPU, top_k=7, rule=FROM_FEW), want, strict=True):
        assert relative_rms(got, expected) <= 1e-6


def test_one_way_decompresses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a token is to have the same bits however its prompt is cut."""
    layer = Layer([41, 33, 12], seed=3)
    want = run(layer, STEPS, CPU, top_k=None, rule=NEVER)
    monkeypatch.setattr(KVCachePool, "attend_beside", lambda *_, **__: pytest.fail("it did"))
    got = run(layer, STEPS, changed(CPU, one_way=True), top_k=None, rule=FROM_FEW)
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_nobody_reads_what_is_not_its_own() -> None:
    """Whatever else is in the cache is NaN."""
    layer = Layer([41, 33, 12], seed=3)
    filled = KVCachePool.reset

    def reset(self: KVCachePool) -> None:
        filled(self)
        self.rebind([mx.full(array.shape, mx.nan) for array in self.evaluation_roots()])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KVCachePool, "reset", reset)
        outs = run(layer, STEPS, CPU, top_k=7, rule=FROM_FEW)
    assert all(np.isfinite(out).all() for out in outs)


def test_quantized_matrices_decompress_alike() -> None:
    module = Layer([9], seed=6).module
    latents = mx.random.normal((9, LATENT + ROTARY))
    dense = dict(vars(module))
    for name in ("embed_q", "unembed_out"):
        quantized = getattr(module, name).to_quantized(32, 8)
        setattr(module, name, quantized)
        dense[name] = MultiLinear(1, 1, 1)
        arrays = (quantized.weight, quantized.scales, quantized.biases)
        dense[name].weight = mx.dequantize(*arrays, group_size=32, bits=8)
    of_dense, of_quantized = (
        Heads(one, mx.zeros(0)).decompressed(latents, slice(1, 3))
        for one in (SimpleNamespace(**dense), module)
    )
    for got, want in zip(of_quantized, of_dense, strict=True):
        assert relative_rms(np.array(got), np.array(want)) <= 1e-6


@given(
    spans=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=6),
    top_k=st.none() | st.integers(1, 80),
    decompression=st.integers(0, 60),
    most=st.sampled_from([1, 20_000, 2**25]),
)
def test_every_token_attends_once(
    spans: list[tuple[int, int]], top_k: int | None, decompression: int, most: int
) -> None:
    chunks = [
        Chunk(np.zeros(0), np.arange(13, dtype=np.int32) + 13 * seq, start, start + count)
        for seq, (start, count) in enumerate(spans)
    ]
    _, (metadata,) = metadata_of(chunks, BLOCK_SIZE)
    rule = DecompressionRule(1, 0, decompression)
    index = None if top_k is None else IndexSize(top_k, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latent_parts, "MOST_ELEMENTS", most)
        parts = divide(metadata, BLOCK_SIZE, index=index, rule=rule)
    total = sum(count for _, count in spans)
    if parts is None:
        assert top_k is None or all(start + count <= top_k for start, count in spans)
        return
    assert sorted(np.array(parts.order).tolist()) == list(range(total))
    positions = np.concatenate([np.arange(start, start + count) for start, count in spans])
    assert_ways(parts, positions, spans, top_k, rule)


def assert_ways(
    parts: LatentParts,
    positions: np.ndarray,
    spans: list[tuple[int, int]],
    top_k: int | None,
    rule: DecompressionRule,
) -> None:
    """Each way has the tokens that it should."""
    choosing = [row for one in parts.choosing for row in np.array(one.rows).tolist()]
    whole = positions.max() + 1 if top_k is None else top_k
    assert sorted(choosing) == np.flatnonzero(positions >= whole).tolist()
    for one in parts.choosing:
        seen = np.array(one.positions).ravel()
        assert (positions[np.array(one.rows)] == seen).all()
        assert np.array(one.slots).shape[1] == seen.max() + 1
    for one in parts.prefills:
        context = int(positions[one.end - 1]) + 1
        assert rule.holds(one.end - one.start, context)
        assert np.array(one.metadata.seq_lens).tolist() == [context]
        assert one.blocks.size == -(-context // BLOCK_SIZE)
    rows = [] if parts.absorbed_rows is None else np.array(parts.absorbed_rows).tolist()
    if parts.absorbed is not None:
        ends = np.array(parts.absorbed.cu_seqlens_q)[1:] - 1
        last = positions[np.array(rows)[ends]]
        assert np.array(parts.absorbed.seq_lens).tolist() == (last + 1).tolist()
        counts = np.diff(np.array(parts.absorbed.cu_seqlens_q))
        assert not any(map(rule.holds, counts.tolist(), (last + 1).tolist()))


def test_decodes_are_never_read_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of one token each may be recorded, before their integers are known."""
    chunks = [Chunk(np.zeros(0), np.arange(3, dtype=np.int32), 20, 21)] * 2
    _, (metadata,) = metadata_of(chunks, BLOCK_SIZE)
    monkeypatch.setattr(latent_parts.np, "asarray", lambda *_: pytest.fail("it was read"))
    assert divide(metadata, BLOCK_SIZE, rule=FROM_FEW) is None
    assert divide(metadata, BLOCK_SIZE, rule=FROM_FEW, index=IndexSize(24, 4)) is None


def test_nor_is_what_is_being_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [Chunk(np.zeros(0), np.arange(3, dtype=np.int32), 0, 20)] * 2
    _, (metadata,) = metadata_of(chunks, BLOCK_SIZE)
    assert divide(metadata, BLOCK_SIZE, rule=FROM_FEW) is not None
    monkeypatch.setattr(latent_parts.np, "asarray", lambda *_: pytest.fail("it was read"))
    with being_recorded():
        assert divide(metadata, BLOCK_SIZE, rule=FROM_FEW) is None
