"""Tiny checkpoints on disk, loaded as an engine loads them, and the logits of both sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model

from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.device import CPU as CPU
from backend_metal.models.load.loader import LoadedModel, load
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.packed_step import Chunk, forward, states_for

PLENTY = 2**30
TOKENS = np.arange(20, dtype=np.int32) * 13 % tiny_models.VOCAB_SIZE
TABLE = np.array([2, 0, 3], np.int32)
ROUNDED = 5e-4
"""Of logits, at most what is lost where rows meet weights of 4 or 8 bits as 16-bit integers."""


def load_cpu(directory: Path, **options: Any) -> LoadedModel:
    return load(str(directory), device=CPU, **{"memory_limit_bytes": PLENTY} | options)


def logits_of(loaded: LoadedModel) -> np.ndarray:
    model = loaded.model
    pool = KVCachePool(model.layers, num_blocks=4, block_size=8, dtype=model.dtype)
    return forward(model, pool, [Chunk(TOKENS, TABLE, 0, 20)], states_for(model, 1))[0]


def dense_logits(network: Any) -> np.ndarray:
    return np.array(network(mx.array(TOKENS[None]))[0].astype(mx.float32))


def save_quantized(
    family: str,
    directory: Path,
    *,
    mode: str = "affine",
    bits: int = 4,
    group_size: int = 32,
    dtype: mx.Dtype = mx.float32,
) -> None:
    """``dtype``: of whatever is not quantized, scales included."""
    tiny_models.save(family, directory)
    network, config = tiny_models.build(family)
    network.set_dtype(dtype)
    network, config = quantize_model(network, config, group_size, bits, mode=mode)
    weights = dict(tree_flatten(network.parameters()))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    (directory / "config.json").write_text(json.dumps(config))
