"""Multi-head latent attention on a paged cache: DeepSeek-V3 and those like it.

mlx-lm keeps a latent and a rotary key for each token, the same for all heads, and decompresses them
into keys and values where a forward has several tokens. Here a token attends to the latents
themselves, with its query brought into their space ("absorbed", DeepSeek-V2, arXiv:2405.04434,
section 2.1.3): one key head of latent and rotary dims, of which the latent is the value, too. Only
for many tokens of one sequence are they decompressed (``latents.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.bailing_hybrid import MultiLatentAttention
from mlx_lm.models.bailing_moe_v3 import BailingMLA
from mlx_lm.models.deepseek_v3 import DeepseekV3Attention
from mlx_lm.models.deepseek_v32 import DeepseekV32Attention
from mlx_lm.models.glm4_moe_lite import Glm4MoeLiteAttention
from mlx_lm.models.kimi_k3 import KimiK3MLAAttention
from mlx_lm.models.kimi_linear import KimiMLAAttention
from mlx_lm.models.longcat_flash import LongcatFlashMLA
from mlx_lm.models.mistral4 import Mistral4Attention
from mlx_lm.models.mla import QuantizedMultiLinear

from backend_metal.attention.head_dims import have_kernels
from backend_metal.attention.kv_cache import LayerAttention, LayerCacheSpec
from backend_metal.attention.latent_parts import DecompressionRule
from backend_metal.models.layers.latents import IndexStep
from backend_metal.models.layers.layer_cache import LayerCache


class PagedDeepseekV3Attention(DeepseekV3Attention):  # type: ignore[misc]
    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if isinstance(cache, LayerCache):
            return projected(self.o_proj, attend_latents(self, x, cache))
        dense: mx.array = super().__call__(x, mask, cache)
        return dense


class PagedDeepseekV32Attention(DeepseekV32Attention):  # type: ignore[misc]
    """Its cache is two: of latents, and of its index."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if isinstance(cache, tuple):
            latents, index = cache
            return projected(self.o_proj, attend_latents(self, x, latents, index_cache=index))
        dense: mx.array = super().__call__(x, mask, cache)
        return dense


class PagedGlm4MoeLiteAttention(Glm4MoeLiteAttention):  # type: ignore[misc]
    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if isinstance(cache, LayerCache):
            return projected(self.o_proj, attend_latents(self, x, cache))
        dense: mx.array = super().__call__(x, mask, cache)
        return dense


class PagedKimiMLAAttention(KimiMLAAttention):  # type: ignore[misc]
    """Its rotary dims are not rotated."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if isinstance(cache, LayerCache):
            return projected(self.o_proj, attend_latents(self, x, cache))
        dense: mx.array = super().__call__(x, mask, cache)
        return dense


class PagedMistral4Attention(Mistral4Attention):  # type: ignore[misc]
    def __call__(
        self, x: mx.array, attn_scale: mx.array, mask: Any = None, cache: Any = None
    ) -> mx.array:
        if isinstance(cache, LayerCache):
            return projected(self.o_proj, attend_latents(self, x, cache, query_scale=attn_scale))
        dense: mx.array = super().__call__(x, attn_scale, mask, cache)
        return dense


class PagedBailingHybridAttention(MultiLatentAttention):  # type: ignore[misc]
    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if isinstance(cache, LayerCache):
            return projected(self.dense, attend_latents(self, x, cache))
        dense: mx.array = super().__call__(x, mask, cache)
        return dense


class PagedBailingMLA(BailingMLA):  # type: ignore[misc]
    """Its heads have a gate each."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if isinstance(cache, LayerCache):
            out = attend_latents(self, x, cache)
            gates = mx.sigmoid(self.g_proj(x).astype(mx.float32)).astype(out.dtype)
            return projected(self.dense, out * gates[..., None])
        dense: mx.array = super().__call__(x, mask, cache)
        return dense


class PagedKimiK3MLAAttention(KimiK3MLAAttention):  # type: ignore[misc]
    """Its rotary dims are not rotated."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if isinstance(cache, LayerCache):
            out = attend_latents(self, x, cache)
            if self.use_gate:
                out = out * mx.sigmoid(self.g_proj(x)).reshape(out.shape)
            return projected(self.o_proj, out)
        dense: mx.array = super().__call__(x, mask, cache)
        return dense


class PagedLongcatFlashMLA(LongcatFlashMLA):  # type: ignore[misc]
    """Queries and latents have scales of their own."""

    @property
    def num_heads(self) -> int:
        return int(self.num_attention_heads)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if isinstance(cache, LayerCache):
            out = attend_latents(
                self,
                x,
                cache,
                query_scale=getattr(self, "mla_scale_q_lora", None),
                latent_scale=getattr(self, "mla_scale_kv_lora", None),
            )
            return projected(self.o_proj, out)
        dense: mx.array = super().__call__(x, mask, cache)
        return dense


PAGED = {
    BailingMLA: PagedBailingMLA,
    DeepseekV3Attention: PagedDeepseekV3Attention,
    DeepseekV32Attention: PagedDeepseekV32Attention,
    Glm4MoeLiteAttention: PagedGlm4MoeLiteAttention,
    KimiK3MLAAttention: PagedKimiK3MLAAttention,
    KimiMLAAttention: PagedKimiMLAAttention,
    LongcatFlashMLA: PagedLongcatFlashMLA,
    MultiLatentAttention: PagedBailingHybridAttention,
    Mistral4Attention: PagedMistral4Attention,
}


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    for part in model.modules():
        if paged := PAGED.get(type(part)):
            part.__class__ = paged


@dataclass(frozen=True)
class Heads:
    """``LatentHeads`` by mlx-lm's projections."""

    layer: Any
    queries: mx.array

    @property
    def num_heads(self) -> int:
        return int(self.layer.num_heads)

    @property
    def scale(self) -> float:
        return float(self.layer.scale)

    @property
    def latent_dim(self) -> int:
        return int(self.layer.kv_lora_rank)

    @property
    def value_dim(self) -> int:
        return int(self.layer.v_head_dim)

    @property
    def rule(self) -> DecompressionRule:
        layer = self.layer
        own = layer.qk_nope_head_dim + layer.v_head_dim
        return DecompressionRule(
            absorbed=2 * layer.kv_lora_rank + layer.qk_rope_head_dim,
            decompressed=own + layer.qk_rope_head_dim,
            decompression=own * layer.kv_lora_rank,
        )

    def asks(self) -> LayerAttention:
        layer = self.layer
        dims = layer.kv_lora_rank + layer.qk_rope_head_dim, layer.kv_lora_rank
        own = self.queries.shape[2], self.value_dim
        return LayerAttention(
            LayerCacheSpec(1, *dims, values_in_keys=True),
            self.num_heads,
            self.scale,
            decompressed=LayerCacheSpec(self.num_heads, *own) if have_kernels(own) else None,
        )

    def absorbed(self, rows: mx.array | None = None) -> mx.array:
        q = self.queries if rows is None else self.queries[rows]
        # One product for each head, of all tokens.
        q, rotary = mx.split(q, [self.layer.qk_nope_head_dim], axis=-1)
        q = self.layer.embed_q(q.swapaxes(0, 1)).swapaxes(0, 1)
        return mx.concatenate([q, rotary], axis=-1)

    def unembedded(self, out: mx.array) -> mx.array:
        unembedded: mx.array = self.layer.unembed_out(out.swapaxes(0, 1)).swapaxes(0, 1)
        return unembedded

    def decompressed(self, latents: mx.array, heads: slice) -> tuple[mx.array, mx.array]:
        latents, rotary = mx.split(latents[None], [self.latent_dim], axis=-1)
        keys = _product(self.layer.embed_q, latents, heads, transpose=False)
        values = _product(self.layer.unembed_out, latents, heads, transpose=True)
        rotary = mx.broadcast_to(rotary, (len(keys), *rotary.shape[1:]))
        return mx.concatenate([keys, rotary], axis=-1), values


def attend_latents(
    layer: Any,
    x: mx.array,
    cache: LayerCache,
    query_scale: mx.array | float | None = None,
    latent_scale: float | None = None,
    index_cache: LayerCache | None = None,
) -> mx.array:
    """Attention of packed tokens, ``[num_tokens, 1, hidden_size]``, before the last projection:
    ``[num_tokens, 1, num_heads, value_dim]``.

    Args:
        layer: has mlx-lm's projections of latent attention; ``rope`` may be missing.
        query_scale: what queries are multiplied with, if anything.
        latent_scale: what latents are, without their rotary keys.
        index_cache: of the layer's ``indexer``, if it has one.
    """
    num_tokens = x.shape[0]
    if getattr(layer, "q_lora_rank", None) is None:
        compressed = x
        q = layer.q_proj(x)
    else:
        compressed = layer.q_a_layernorm(layer.q_a_proj(x))
        q = layer.q_b_proj(compressed)
    q = q.reshape(num_tokens, layer.num_heads, 1, -1)
    latent, rotary_k = mx.split(layer.kv_a_proj_with_mqa(x), [layer.kv_lora_rank], axis=-1)
    latent = layer.kv_a_layernorm(latent)
    if latent_scale is not None:
        latent = latent * latent_scale
    if "rope" in layer:
        q, rotary_q = mx.split(q, [layer.qk_nope_head_dim], axis=-1)
        q = mx.concatenate([q, layer.rope(rotary_q, cache.offset)], axis=-1)
        rotary_k = layer.rope(rotary_k[:, None], cache.offset).squeeze(1)
    if query_scale is not None:
        q = q * query_scale
    index = None
    if index_cache is not None:
        index = index_step(layer.indexer, x, compressed, index_cache)
    latents = mx.concatenate([latent, rotary_k], axis=-1)
    return cache.attend_latents(Heads(layer, q.squeeze(2)), latents, index)[:, None]


def projected(projection: nn.Module, out: mx.array) -> mx.array:
    """What heads say, ``[num_tokens, 1, num_heads, value_dim]``, as hidden states."""
    hidden: mx.array = projection(out.flatten(-2))
    return hidden


def index_step(indexer: Any, x: mx.array, compressed: mx.array, cache: LayerCache) -> IndexStep:
    """``x`` and ``compressed``, its queries before they are those of heads: packed tokens,
    ``[num_tokens, 1, size]``."""
    num_heads, dim = indexer.n_heads, indexer.head_dim
    q = indexer.wq_b(compressed).reshape(-1, num_heads, 1, dim)
    k = indexer.k_norm(indexer.wk(x))[:, None]
    q, k = (indexer.rope(array, offset=cache.offset).squeeze(2) for array in (q, k))
    weights = indexer.weights_proj(x).squeeze(1) * (num_heads**-0.5 * indexer.softmax_scale)
    return IndexStep(cache.layer, q, k, weights, indexer.index_topk)


def _product(module: nn.Module, x: mx.array, heads: slice, *, transpose: bool) -> mx.array:
    """As ``module``, of some of its heads."""
    weight = module.weight[heads]
    if not isinstance(module, QuantizedMultiLinear):
        dense: mx.array = x @ (weight.swapaxes(-1, -2) if transpose else weight)
        return dense
    biases = module.get("biases")
    return mx.quantized_matmul(
        x,
        weight,
        module.scales[heads],
        None if biases is None else biases[heads],
        transpose=transpose,
        group_size=module.group_size,
        bits=module.bits,
        mode=module.mode,
    )
