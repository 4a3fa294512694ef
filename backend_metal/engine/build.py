"""From a configuration to an engine that is ready to step. Runs in the thread that will own MLX."""

from __future__ import annotations

import logging

import mlx.core as mx

from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.attention.paths import AttentionPath
from backend_metal.device import device_memory_bytes, select_device
from backend_metal.engine.attention_choice import choose_attention
from backend_metal.engine.engine import Engine
from backend_metal.engine.memory import GIB, num_kv_blocks
from backend_metal.engine.runner import ModelRunner
from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.models.find import find_config
from backend_metal.models.generation_config import default_sampling
from backend_metal.models.loader import LoadedModel, load
from backend_metal.models.weights import check_stored_weights
from deployments.backend import EngineConfig

logger = logging.getLogger(__name__)

BUFFER_CACHE_FRACTION = 0.05
"""Most of the device's memory that MLX may keep in freed buffers, which it does without a limit."""


def check_config(config: EngineConfig) -> None:
    """What can be told without loading the model. Raises ``ValueError`` naming what must change."""
    _check_options(config)
    device = select_device(config.device)
    path, _ = find_config(config.model, config.revision)
    default_sampling(path, config.generation_config, config.generation_defaults)
    check_stored_weights(
        path,
        dtype=config.dtype,
        memory_limit_bytes=int(device_memory_bytes(device.mlx) * config.memory_fraction),
    )


def build_engine(config: EngineConfig) -> Engine:
    """Load the model and allocate the KV cache. Raises ``ValueError`` naming what must change."""
    _check_options(config)
    device = select_device(config.device)
    memory_bytes = device_memory_bytes(device.mlx)
    mx.set_cache_limit(int(memory_bytes * BUFFER_CACHE_FRACTION))
    loaded = load(
        config.model,
        revision=config.revision,
        device=device.mlx,
        dtype=config.dtype,
        memory_limit_bytes=int(memory_bytes * config.memory_fraction),
        trust_remote_code=config.trust_remote_code,
        chat_template=config.chat_template,
        parse_special_tokens_in_messages=config.parse_special_tokens_in_messages,
        chat_format=config.chat_format,
        generation_config=config.generation_config,
        generation_defaults=config.generation_defaults,
    )
    max_model_len = _max_model_len(config, loaded)
    path, attention = choose_attention(
        config.attention,
        device,
        loaded.model.layers,
        block_size=config.block_size,
        dtype=loaded.model.dtype,
    )
    pool = _allocate(config, loaded, max_model_len, memory_bytes, path)
    return Engine(
        config,
        ModelRunner(loaded.model, pool),
        BlockPool(pool.num_blocks),
        loaded.tokenizer,
        vocab_size=loaded.model.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=loaded.eos_token_ids,
        attention=attention,
        default_sampling=loaded.default_sampling,
        revision=loaded.revision,
        pooling=loaded.pooling,
        generates=loaded.generates,
        state_size=loaded.model.state_size,
    )


def _check_options(config: EngineConfig) -> None:
    if config.options:
        raise ValueError(f"engine.options must be empty for this backend, not {config.options}")


def _max_model_len(config: EngineConfig, loaded: LoadedModel) -> int:
    if config.max_model_len is None:
        return loaded.max_model_len
    if config.max_model_len > loaded.max_model_len:
        raise ValueError(
            f"engine.max_model_len must be at most {loaded.max_model_len}, the context of "
            f"{config.model}, not {config.max_model_len}"
        )
    return config.max_model_len


def _allocate(
    config: EngineConfig,
    loaded: LoadedModel,
    max_model_len: int,
    memory_bytes: int,
    path: AttentionPath,
) -> KVCachePool:
    specs, dtype = loaded.model.cache_specs, loaded.model.dtype
    bytes_per_block = KVCachePool.bytes_per_block(specs, config.block_size, dtype)
    num_blocks = num_kv_blocks(
        memory_bytes=memory_bytes,
        memory_fraction=config.memory_fraction,
        weight_bytes=loaded.weight_bytes,
        bytes_per_block=bytes_per_block,
        most_useful=config.max_num_seqs * -(-max_model_len // config.block_size),
        wanted=config.num_kv_blocks,
    )
    pool = KVCachePool(loaded.model.layers, num_blocks, config.block_size, dtype, path=path)
    logger.info(
        "KV cache: %d blocks of %d tokens, %.2f GiB; context %d tokens",
        num_blocks,
        config.block_size,
        pool.nbytes / GIB,
        max_model_len,
    )
    return pool
