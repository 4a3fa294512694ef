"""A checkpoint with random weights and a tokenizer to match; of Qwen3's shape by default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

# Before mlx, so that MLX finds the BLAS.
import backend_metal.devices.cpu.blas  # noqa: F401  # isort: skip
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 32768
QUANTIZATION_GROUP = 64
END = "<|end|>"
CONFIG: Mapping[str, object] = {
    "model_type": "qwen3",
    "hidden_size": 768,
    "num_hidden_layers": 10,
    "intermediate_size": 2304,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 8192,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Parameters:
    backbone: int
    """Multiplied with every token."""
    head: int
    """Multiplied with every token that is sampled from."""


def save(
    directory: Path,
    config: Mapping[str, object] = CONFIG,
    seed: int = 0,
    dtype: mx.Dtype = mx.float32,
    bits: int | None = None,
) -> Parameters:
    """Write ``config.json``, ``model.safetensors`` and ``tokenizer.json``.

    Matrices are quantized to ``bits``, or else all weights are of ``dtype``. The greatest logit is
    never ``END``'s, so that greedy answers are as long as was asked for.
    """
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(deepcopy(dict(config))))
    mx.random.seed(seed)
    # Norms stay near 1; the rest is scaled so that activations neither vanish nor explode.
    weights = tree_map(lambda w: _random(w.shape, dtype), model.parameters())
    flat = dict(tree_flatten(weights))
    head = "model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"
    flat[head][-1] = 0
    matrices = {name: weight.size for name, weight in flat.items() if weight.ndim > 1}
    saved = dict(config)
    if bits is not None:
        model.update(weights)
        nn.quantize(model, QUANTIZATION_GROUP, bits)
        flat = dict(tree_flatten(model.parameters()))
        saved["quantization"] = {"group_size": QUANTIZATION_GROUP, "bits": bits}
    mx.save_safetensors(str(directory / "model.safetensors"), flat, {"format": "mlx"})
    (directory / "config.json").write_text(json.dumps(saved))
    _tokenizer(model.args.vocab_size).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END})
    )
    backbone = sum(size for name, size in matrices.items() if name.startswith("model.layers."))
    return Parameters(backbone=backbone, head=matrices[head])


def _random(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    if len(shape) == 1:
        return mx.ones(shape, dtype)
    scale: float = shape[-1] ** -0.5
    return mx.random.normal(shape, dtype) * scale


def _tokenizer(vocab_size: int) -> Tokenizer:
    """Bytes first, then made-up words, so that every id has a text; the last one ends."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    names += [f"Ġw{index}" for index in range(vocab_size - len(names) - 1)]
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer
