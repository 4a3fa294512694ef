"""A checkpoint of Qwen3's shape with Qwen's own vocabulary, and random weights.

What it writes means nothing, so that only a grammar makes a call or an answer of a schema of it.
What ends a string, a thought or an answer it draws every few tokens, as models that were trained
do sooner or later: without that, clients that bound nothing would get what was cut short.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tokenizers import AddedToken, Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

VOCAB_SIZE = 151_936
"""Of the logits: the tokenizer has 151,669."""
HIDDEN_SIZE = 64
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN_SIZE,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 40960,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "eos_token_id": 151_645,
}
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROLS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>"),
    *("<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
MARKERS = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>"),
)
"""Tokens, too, but such as are told."""
ENDS = ("<|im_end|>", "</think>", '"', ",", "}", "]")
END_LOGIT = 10.5
"""Above the others' mean: each of ``ENDS`` is then about one token in 15."""
STEADY = 30.0
"""An element of each hidden state that no layer changes: what it is multiplied with in the head is
added to a logit in any context."""
TEMPLATE = (Path(__file__).parent / "qwen3.jinja").read_text()


def save(directory: Path) -> None:
    """Write config, weights, tokenizer and chat template: some 60 MB. It is always the same."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = qwen_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    weights = _weights(tokenizer)
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})


def qwen_tokenizer() -> Tokenizer:
    """Qwen's, of the vocabulary that `dashscope` comes with."""
    spec = importlib.util.find_spec("dashscope")
    assert spec is not None
    assert spec.origin is not None
    vocabulary = Path(spec.origin).parent / "resources" / "qwen.tiktoken"
    tokenizer = TikTokenConverter(str(vocabulary), PATTERN).converted()
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in CONTROLS])
    tokenizer.add_tokens([AddedToken(one, normalized=False) for one in MARKERS])
    return tokenizer


def _weights(tokenizer: Tokenizer) -> dict[str, mx.array]:
    random = np.random.default_rng(0)
    heads, kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
    head_dim, width = CONFIG["head_dim"], CONFIG["intermediate_size"]

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.standard_normal((rows, columns), np.float32) * columns**-0.5

    def into_hidden(columns: int) -> np.ndarray:
        made = matrix(HIDDEN_SIZE, columns)
        made[0] = 0
        return made

    embedding = random.standard_normal((VOCAB_SIZE, HIDDEN_SIZE), np.float32)
    embedding[:, 0] = STEADY
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": np.ones(HIDDEN_SIZE)}
    for layer in range(CONFIG["num_hidden_layers"]):
        weights |= {
            f"model.layers.{layer}.{name}.weight": value
            for name, value in {
                "input_layernorm": np.ones(HIDDEN_SIZE),
                "post_attention_layernorm": np.ones(HIDDEN_SIZE),
                "self_attn.q_proj": matrix(heads * head_dim, HIDDEN_SIZE),
                "self_attn.k_proj": matrix(kv_heads * head_dim, HIDDEN_SIZE),
                "self_attn.v_proj": matrix(kv_heads * head_dim, HIDDEN_SIZE),
                "self_attn.q_norm": np.ones(head_dim),
                "self_attn.k_norm": np.ones(head_dim),
                "self_attn.o_proj": into_hidden(heads * head_dim),
                "mlp.gate_proj": matrix(width, HIDDEN_SIZE),
                "mlp.up_proj": matrix(width, HIDDEN_SIZE),
                "mlp.down_proj": into_hidden(width),
            }.items()
        }
    weights["lm_head.weight"] = _head(random, tokenizer)
    return {name: mx.array(value).astype(mx.float16) for name, value in weights.items()}


def _head(random: np.random.Generator, tokenizer: Tokenizer) -> np.ndarray:
    # What the last norm makes of the steady element, the others being about 1 before it; they are
    # then about `others`, and their part of a logit has a deviation of 1.
    norm = ((STEADY**2 + HIDDEN_SIZE - 1) / HIDDEN_SIZE) ** 0.5
    steady, others = STEADY / norm, 1 / norm
    head = random.standard_normal((VOCAB_SIZE, HIDDEN_SIZE), np.float32)
    head /= others * (HIDDEN_SIZE - 1) ** 0.5
    head[:, 0] = 0
    head[[tokenizer.token_to_id(text) for text in ENDS], 0] = END_LOGIT / steady
    return head
