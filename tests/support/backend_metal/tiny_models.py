"""A tiny model of every supported family, with deterministic weights that make attention matter.

``build(family)`` gives mlx-lm's own model and its config; ``save(family, directory)`` a checkpoint
with a byte-level tokenizer, as a loader finds it.
"""

from __future__ import annotations

import importlib
import json
import zlib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import MODEL_REMAPPING
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from backend_metal.models.families.bitnet import unpack_ternary
from tests.support.backend_metal import recurrent_configs
from tests.support.backend_metal.tiny_configs import (
    BASE,
    FAMILY_CONFIGS,
    REFUSED_CONFIGS,
    VARIANTS,
)
from tests.support.backend_metal.tiny_configs import VOCAB_SIZE as VOCAB_SIZE
from tests.support.backend_metal.tiny_configs import WINDOW as WINDOW
from tests.support.backend_metal.tiny_configs import WITHOUT_KERNELS as WITHOUT_KERNELS

UNSCALED = ("gemma3n", "gemma4", "gemma4_text")
"""Those whose attention has the scale 1, so that theirs is in the weights of the queries' norm."""
PACKED = tuple(
    f"language_model.{module['path']}."
    for module in FAMILY_CONFIGS["prism_hadamard_qwen35"]["modules"]
)
"""What that family has in 2 bits."""
BOS, EOS, END_OF_TURN = "<|bos|>", "<|eos|>", "<|end|>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def config_of(family: str) -> dict[str, Any]:
    """The family's config.json; ``family`` may be the name of a variant."""
    model_type = family if family in FAMILY_CONFIGS else family.split("-")[0]
    own = (FAMILY_CONFIGS | VARIANTS | REFUSED_CONFIGS)[family]
    return deepcopy(BASE | {"eos_token_id": 257} | own | {"model_type": model_type})


def build(family: str, *, unpacks: bool = True) -> tuple[nn.Module, dict[str, Any]]:
    """mlx-lm's model in float32, the same for every call, and its config. ``unpacks``: ternary
    weights, which mlx-lm multiplies with on Metal alone."""
    config = config_of(family)
    model_type = config["model_type"]
    module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(model_type, model_type)}")
    model = module.Model(module.ModelArgs.from_dict(deepcopy(config)))
    if model_type in ("gemma3", "gemma3_text"):
        text = getattr(model, "language_model", model)
        text.tie_word_embeddings = True
        text.pop("lm_head")
    randomize(model, model_type, family)
    if unpacks:
        unpack_ternary(model)
    return model, config


def randomize(model: nn.Module, model_type: str, seed: str) -> None:
    """Give ``model`` weights in float32, the same for every call."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    weights = [
        (name, _packed(rng, name, array))
        if model_type == "prism_hadamard_qwen35" and name.startswith(PACKED)
        else (name, _ternary(rng, array))
        if array.dtype == mx.uint8
        else (name, mx.array(_weight(rng, name, array.shape)))
        for name, array in tree_flatten(model.parameters())
    ]
    if model_type in UNSCALED:
        weights = [
            (name, weight / weight.size**0.5 if name.endswith("q_norm.weight") else weight)
            for name, weight in weights
        ]
    if model_type in ("baichuan_m1", "bailing_moe"):
        # A loader norms the rows of its head.
        weights = list(model.sanitize(dict(weights)).items())
    model.update(tree_unflatten(weights))
    mx.eval(model.parameters())
    model.eval()


def save(family: str, directory: Path) -> None:
    """Write a checkpoint: config, weights and tokenizer."""
    write(*build(family, unpacks=False), directory)


def write(model: nn.Module, config: Mapping[str, Any], directory: Path) -> None:
    weights = dict(tree_flatten(model.parameters()))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    save_tokenizer(directory)


def save_tokenizer(directory: Path) -> None:
    """Token ``i`` is the byte ``i``; 256, 257 and 258 are BOS, EOS and the end of a turn."""
    # ByteLevel maps each byte to a printable character: the printable ones to themselves.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    vocab = {character: byte for byte, character in characters.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS, END_OF_TURN])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def _ternary(rng: np.random.Generator, array: mx.array) -> mx.array:
    """Each two bits from 0 to 2."""
    parts = rng.integers(0, 3, (4, *array.shape), dtype=np.uint8)
    return mx.array(sum(part << 2 * number for number, part in enumerate(parts)))


def _packed(rng: np.random.Generator, name: str, array: mx.array) -> mx.array:
    if name.endswith("weight"):
        return mx.array(rng.integers(0, 2**32, array.shape, dtype=np.uint32))
    if name.endswith("signs"):
        return mx.array(rng.choice([-1.0, 1.0], array.shape).astype(np.float32))
    # Of values around 0, from the four that 2 bits are.
    step = 1.5 / (array.shape[-1] * 128) ** 0.5
    return mx.full(array.shape, step if name.endswith("scales") else -1.5 * step, array.dtype)


def _weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    noise = rng.standard_normal(shape).astype(np.float32)
    if (slow := recurrent_configs.weight(name, noise)) is not None:
        return slow
    if len(shape) > 1:
        # Wide enough that attention is peaked and a wrong key shows.
        return noise * (0.1 if "embed" in name else 1.5 / shape[-1] ** 0.5)
    is_norm = name.endswith("norm.weight") or "layernorm.weight" in name
    return 1.0 + 0.1 * noise if is_norm else 0.5 * noise
