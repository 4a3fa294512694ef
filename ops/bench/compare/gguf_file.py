"""GGUF files for llama.cpp, from a Qwen3 checkpoint as ``random_model`` saves it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from ops.bench.engine.random_model import END

NEVER_MERGED = "Ā Ā"
"""llama.cpp wants a merge at least. This one makes no token, so text stays bytes, as with none."""


def write(
    checkpoint: Path, path: Path, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
) -> None:
    """Matrices, embeddings among them, become ``kind``; norms stay float32."""
    config = json.loads((checkpoint / "config.json").read_text())
    architecture = gguf.MODEL_ARCH.QWEN3
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _write_shape(writer, config)
    _write_tokenizer(writer, Tokenizer.from_file(str(checkpoint / "tokenizer.json")))
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        stored = gguf.GGMLQuantizationType.F32 if tensor.ndim == 1 else kind
        writer.add_tensor(
            theirs(names, name), quantize(tensor.astype(np.float32), stored), raw_dtype=stored
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def theirs(names: gguf.TensorNameMap, name: str) -> str:
    """What llama.cpp calls the tensor ``name``. Raises ``ValueError`` if it has no such tensor."""
    found = names.get_name(name, try_suffixes=(".weight",))
    if found is None:
        raise ValueError(f"llama.cpp's Qwen3 has no tensor for {name}")
    return found


def _write_shape(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    end = ids[END]
    kinds = [gguf.TokenType.NORMAL] * len(tokens)
    kinds[end] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([NEVER_MERGED])
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
