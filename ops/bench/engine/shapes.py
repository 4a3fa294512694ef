"""The models that engines are measured with, and the workload that suits each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Before mlx, so that MLX finds the BLAS.
from ops.bench.engine import random_model  # isort: skip
import mlx.core as mx

from ops.bench.engine.workload import Workload


@dataclass(frozen=True)
class Shape:
    config: Mapping[str, object]
    dtype: mx.Dtype
    workload: Workload

    @property
    def vocab_size(self) -> int:
        size = self.config["vocab_size"]
        assert isinstance(size, int)
        return size


FOR_A_GPU = Workload(num_prompts=96, shortest=64, longest=1024, output_tokens=128, at_once=32)

QWEN3_06B: Mapping[str, object] = {
    **random_model.CONFIG,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 151_936,
}
QWEN3_8B: Mapping[str, object] = {
    **QWEN3_06B,
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
}

SHAPES: Mapping[str, Shape] = {
    "100m": Shape(random_model.CONFIG, mx.float32, Workload()),
    "0.6b": Shape(QWEN3_06B, mx.bfloat16, FOR_A_GPU),
    "8b": Shape(QWEN3_8B, mx.bfloat16, FOR_A_GPU),
}
