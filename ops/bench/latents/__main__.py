"""A prompt's chunk over latents: absorbed queries against decompressed keys and values.

``python -m ops.bench.latents [--heads N] [--budget SECONDS]``. One layer with the dims of DeepSeek
V3, GLM-4.7-Flash and Mistral 4, of as many heads as a CPU has patience for; float32 on a CPU,
bfloat16 on a GPU. ``DecompressionRule`` takes one of the two; the last column says which.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from types import SimpleNamespace

# Before mlx, so that MLX finds the BLAS.
from backend_metal.device import select_device  # isort: skip
import mlx.core as mx
from mlx_lm.models.mla import MultiLinear

from backend_metal.attention.kv_cache import AttentionMetadata, KVCachePool
from backend_metal.attention.latent_parts import DecompressionRule
from backend_metal.models.layers.latents import LatentAttention
from backend_metal.models.layers.mla import Heads
from ops.bench.timing import markdown_table, median_seconds

BLOCK_SIZE = 16
LATENT, ROTARY = 512, 64
# Chunks, and the context that each ends.
CHUNKS = (
    *((64, 512), (128, 512), (256, 512), (512, 512)),
    *((1024, 1024), (256, 2048), (512, 2048), (2048, 2048)),
    *((256, 4096), (512, 4096), (1024, 4096), (4096, 4096)),
)


@dataclass(frozen=True)
class Dims:
    name: str
    nope: int
    value: int


DIMS = (
    Dims("DeepSeek V3, Kimi K2", 128, 128),
    Dims("GLM-4.7-Flash", 192, 256),
    Dims("Mistral 4", 64, 128),
)
NEVER = DecompressionRule(0, 0, 1)
ALWAYS = DecompressionRule(1, 0, 0)


@dataclass(frozen=True)
class Ruled(Heads):
    own: DecompressionRule

    @property
    def rule(self) -> DecompressionRule:
        return self.own


class Bench:
    def __init__(self, dims: Dims, num_heads: int, dtype: mx.Dtype) -> None:
        self._layer = SimpleNamespace(
            num_heads=num_heads,
            scale=(dims.nope + ROTARY) ** -0.5,
            kv_lora_rank=LATENT,
            qk_nope_head_dim=dims.nope,
            qk_rope_head_dim=ROTARY,
            v_head_dim=dims.value,
            embed_q=MultiLinear(dims.nope, LATENT, num_heads),
            unembed_out=MultiLinear(LATENT, dims.value, num_heads),
        )
        for part in (self._layer.embed_q, self._layer.unembed_out):
            part.set_dtype(dtype)
        self._dims, self._num_heads, self._dtype = dims, num_heads, dtype
        longest = max(context for _, context in CHUNKS)
        num_blocks = longest // BLOCK_SIZE
        layers = [self._heads(1, NEVER).asks()]
        self._pool = KVCachePool(layers, num_blocks, BLOCK_SIZE, dtype)

    def seconds(
        self, num_queries: int, context: int, rule: DecompressionRule, budget: float
    ) -> float:
        heads = self._heads(num_queries, rule)
        latents = mx.random.normal((num_queries, 1, LATENT + ROTARY)).astype(self._dtype)
        blocks = mx.arange(context // BLOCK_SIZE, dtype=mx.int32)
        metadata = AttentionMetadata(
            slot_mapping=mx.arange(context - num_queries, context, dtype=mx.int32),
            block_tables=blocks[None],
            seq_lens=mx.array([context], mx.int32),
            cu_seqlens_q=mx.array([0, num_queries], mx.int32),
        )
        mx.eval(heads.queries, latents, blocks)

        def run() -> None:
            out = LatentAttention(self._pool, [metadata]).attend(0, heads, latents, None)
            mx.eval(out, self._pool.evaluation_roots())

        return median_seconds(run, budget=budget)

    def chosen(self, num_queries: int, context: int) -> str:
        rule = Heads(self._layer, mx.zeros(0)).rule
        return "decompressed" if rule.holds(num_queries, context) else "absorbed"

    def _heads(self, num_tokens: int, rule: DecompressionRule) -> Ruled:
        queries = mx.random.normal((num_tokens, self._num_heads, self._dims.nope + ROTARY))
        return Ruled(self._layer, queries.astype(self._dtype), rule)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.latents", description=__doc__)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of each measurement")
    arguments = parser.parse_args()
    device = select_device("auto")
    mx.set_default_device(device.mlx)
    dtype = mx.float32 if device.mlx.type == mx.cpu else mx.bfloat16
    rows = []
    for dims in DIMS:
        bench = Bench(dims, arguments.heads, dtype)
        for num_queries, context in CHUNKS:
            absorbed, decompressed = (
                bench.seconds(num_queries, context, rule, arguments.budget)
                for rule in (NEVER, ALWAYS)
            )
            rows.append(
                (
                    f"{dims.name}: {num_queries} of {context}",
                    f"{absorbed * 1e3:.1f}",
                    f"{decompressed * 1e3:.1f}",
                    f"{absorbed / decompressed:.2f}",
                    bench.chosen(num_queries, context),
                )
            )
    columns = ("last tokens of a context", "absorbed, ms", "decompressed, ms", "ratio", "served")
    sys.stdout.write(f"{arguments.heads} heads, {device.name}\n\n{markdown_table(columns, rows)}\n")


if __name__ == "__main__":
    main()
