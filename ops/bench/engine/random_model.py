"""A checkpoint of Qwen3's shape with random float32 weights and a tokenizer to match."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Before mlx, so that MLX finds the BLAS.
import backend_metal.linux_cpu.blas  # noqa: F401  # isort: skip
import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import qwen3
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 32768
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


def save(directory: Path, config: Mapping[str, object] = CONFIG, seed: int = 0) -> Parameters:
    """Write ``config.json``, ``model.safetensors`` and ``tokenizer.json``."""
    model = qwen3.Model(qwen3.ModelArgs.from_dict(dict(config)))
    mx.random.seed(seed)
    # Norms stay near 1; the rest is scaled so that activations neither vanish nor explode.
    weights = tree_map(
        lambda w: w if w.ndim == 1 else mx.random.normal(w.shape) * w.shape[-1] ** -0.5,
        model.parameters(),
    )
    flat = dict(tree_flatten(weights))
    mx.save_safetensors(str(directory / "model.safetensors"), flat, {"format": "mlx"})
    (directory / "config.json").write_text(json.dumps(dict(config)))
    _tokenizer(model.args.vocab_size).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"})
    )
    head = flat["model.embed_tokens.weight"].size
    matrices = sum(weight.size for weight in flat.values() if weight.ndim > 1)
    return Parameters(backbone=matrices - head, head=head)


def _tokenizer(vocab_size: int) -> Tokenizer:
    """Bytes first, then made-up words, so that every id has a text; the last one ends."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    names += [f"Ġw{index}" for index in range(vocab_size - len(names) - 1)]
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer
