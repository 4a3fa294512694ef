"""A checkpoint of random weights that is next to nothing to compute, with a tokenizer of one's own.

What is measured is which tokens of prompts are computed. These come from the tokenizer and the chat
template; it doesn't matter what the model makes of them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

# Before mlx, so that MLX finds the BLAS.
import backend_metal.devices.cpu.blas  # noqa: F401  # isort: skip
import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from transformers import AutoTokenizer

MAX_MODEL_LEN = 131_072
HIDDEN = 64
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def save(directory: Path, tokenizer: Path, chat_template: str | None = None) -> None:
    """``tokenizer``: a folder with a model's; its own chat template holds unless one is given."""
    for path in filter(Path.exists, (tokenizer / name for name in TOKENIZER_FILES)):
        shutil.copy(path, directory)
    if chat_template is not None:
        (directory / "chat_template.jinja").write_text(chat_template)
    loaded = AutoTokenizer.from_pretrained(str(directory))
    config = {
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "intermediate_size": HIDDEN,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": HIDDEN,
        "rms_norm_eps": 1e-6,
        "vocab_size": max(loaded.get_vocab().values()) + 1,
        "max_position_embeddings": MAX_MODEL_LEN,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "eos_token_id": loaded.eos_token_id,
    }
    mx.random.seed(0)
    weights = dict(tree_flatten(qwen3.Model(qwen3.ModelArgs.from_dict(config)).parameters()))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    (directory / "config.json").write_text(json.dumps(config))
