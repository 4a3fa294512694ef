"""From a configuration to an engine that is ready to step. Runs in the thread that will own MLX."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import mlx.core as mx

from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.device import REFERENCE, Device, select_device
from backend_metal.engine.attention_choice import choose_attention
from backend_metal.engine.engine import Engine
from backend_metal.engine.grammar.matcher_pool import MatcherPool
from backend_metal.engine.memory.device_limits import limit_memory, limit_submitted
from backend_metal.engine.memory.device_share import claim, engines_folder
from backend_metal.engine.memory.kv_blocks import GIB, Demand, GroupBytes, num_kv_blocks
from backend_metal.engine.memory.resident import ResidentMemory, wire, working_set
from backend_metal.engine.memory.state_memory import StatePlan
from backend_metal.engine.plan import context_of, demand_of, group_bytes, state_plan
from backend_metal.engine.recorded.repeated import RepeatedModel
from backend_metal.engine.recorded.steps import RecordedSteps
from backend_metal.engine.runner import ModelRunner
from backend_metal.engine.schedule.block_group import BlockGroup
from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.engine.schedule.snapshot_borders import SnapshotPolicy
from backend_metal.engine.schedule.state_slots import StateSlots
from backend_metal.engine.step_clock import StepClock
from backend_metal.models.load.account.length import check_wanted, context_length, stated_length
from backend_metal.models.load.account.rope import text_part
from backend_metal.models.load.find import find_config
from backend_metal.models.load.generation_config import default_sampling
from backend_metal.models.load.loader import LoadedModel, load
from backend_metal.models.load.weights import check_stored_weights
from backend_metal.models.paged_model import PagedModel
from backend_metal.recurrent import StatePool, choose_path
from deployments.backend import EngineConfig

logger = logging.getLogger(__name__)

SNAPSHOTS = SnapshotPolicy()


def check_config(config: EngineConfig) -> None:
    """What can be told without loading the model. Raises ``ValueError`` naming what must change."""
    _check_options(config)
    device = select_device(config.device)
    path, stored = find_config(config.model, config.revision)
    text = text_part(stored)
    if (stated := stated_length(text)) is not None:
        context, _ = context_length(text, stated, config.max_model_len)
        check_wanted(config.max_model_len, context, config.model)
    default_sampling(path, config.generation_config, config.generation_defaults)
    check_stored_weights(
        path,
        dtype=config.dtype,
        memory_limit_bytes=int(device.memory_bytes * config.memory_fraction),
    )


def build_engine(config: EngineConfig) -> Engine:
    """Load the model and allocate the KV cache. Raises ``ValueError`` naming what must change."""
    _check_options(config)
    device = select_device(config.device)
    memory_bytes = device.memory_bytes
    share = None
    if working_set(device.mlx) is not None:
        share = claim(config.memory_fraction, config.name, engines_folder())
    limit_memory(memory_bytes)
    loaded = load(
        config.model,
        revision=config.revision,
        device=device,
        dtype=config.dtype,
        memory_limit_bytes=int(memory_bytes * config.memory_fraction),
        trust_remote_code=config.trust_remote_code,
        max_model_len=config.max_model_len,
        chat_template=config.chat_template,
        parse_special_tokens_in_messages=config.parse_special_tokens_in_messages,
        chat_format=config.chat_format,
        generation_config=config.generation_config,
        generation_defaults=config.generation_defaults,
    )
    max_model_len = context_of(config, loaded)
    path, attention = choose_attention(
        config.attention,
        device,
        loaded.model.layers,
        block_size=config.block_size,
        dtype=loaded.model.dtype,
        deterministic=config.deterministic,
    )
    if path is REFERENCE:
        # Asked for, or what is left where kernels of this machine are wrong.
        loaded.model.separate_operators()
    if path.multiply_alike is not None:
        loaded.model.multiply_alike(path.multiply_alike)
    demand = demand_of(config, device, max_model_len)
    plan = state_plan(config, loaded, demand, memory_bytes)
    if plan is not None:
        logger.info(
            "recurrent state: %d bytes a sequence, for %d sequences and %d snapshots, %.2f GiB",
            plan.bytes_per_slot,
            plan.num_sequences,
            plan.num_snapshots,
            plan.nbytes / GIB,
        )
        # First: windows are for as many sequences as run.
        config = config.model_copy(update={"max_num_seqs": plan.num_sequences})
        demand = replace(demand, max_num_seqs=plan.num_sequences)
    pool = _allocate(config, loaded, demand, memory_bytes, path, plan)
    states, slots = None, None
    if plan is not None:
        specs = loaded.model.recurrent
        state_path = choose_path(specs, loaded.model.dtype, device)
        states = StatePool(specs, plan.num_slots, path=state_path)
        slots = StateSlots(
            plan.num_slots, config.block_size, SNAPSHOTS, bytes_per_slot=plan.bytes_per_slot
        )
    resident = ResidentMemory(partial(_held, loaded.model, pool, states), share)
    wire(device.mlx, config.wired_memory, resident.arrays())
    limit_submitted(device.mlx, memory_bytes, path.limit_memory)
    clock, matchers = StepClock(), MatcherPool()
    recorded, repeated = None, None
    # What chooses keys reads on the host how long sequences are.
    chooses = any(layer.top_k is not None for layer in loaded.model.layers)
    # What divides tokens among ways to attend to latents does, too: what is on its way to the
    # device would have to come back first.
    divides = any(layer.cache.values_in_keys for layer in loaded.model.layers)
    if path.recorder is not None and states is None and not chooses:
        recorded = RecordedSteps(
            loaded.model, pool, path.recorder, path.fill_in, config.max_num_seqs
        )
    elif path.repeats_graphs and not chooses:
        repeated = RepeatedModel(loaded.model)
    return Engine(
        config,
        ModelRunner(
            loaded.model,
            pool,
            clock,
            matchers,
            recorded,
            states,
            repeated,
            device,
            mx.array if divides else path.make_array,
            path.fill_in,
        ),
        tuple(
            BlockGroup(BlockPool(num_blocks), config.block_size, group.window)
            for group, num_blocks in zip(pool.groups, pool.num_blocks, strict=True)
        ),
        loaded.tokenizer,
        max_num_batched_tokens=demand.max_num_batched_tokens,
        vocab_size=loaded.model.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=loaded.eos_token_ids,
        attention=attention,
        default_sampling=loaded.default_sampling,
        revision=loaded.revision,
        pooling=loaded.pooling,
        generates=loaded.generates,
        state_size=loaded.model.state_size,
        clock=clock,
        matchers=matchers,
        states=slots,
        resident=resident,
    )


def _check_options(config: EngineConfig) -> None:
    if config.options:
        raise ValueError(f"engine.options must be empty for this backend, not {config.options}")


def _held(model: PagedModel, pool: KVCachePool, states: StatePool | None) -> list[mx.array]:
    """The weights, KV caches and recurrent states that each step uses."""
    roots = [] if states is None else states.evaluation_roots()
    return [*model.arrays(), *pool.evaluation_roots(), *roots]


def _allocate(
    config: EngineConfig,
    loaded: LoadedModel,
    demand: Demand,
    memory_bytes: int,
    path: Device,
    states: StatePlan | None,
) -> KVCachePool:
    layers, dtype = loaded.model.layers, loaded.model.dtype
    groups = group_bytes(config, loaded.model)
    num_blocks = num_kv_blocks(
        groups,
        demand,
        memory_bytes=memory_bytes,
        memory_fraction=config.memory_fraction,
        weight_bytes=loaded.weight_bytes,
        state_bytes=0 if states is None else states.nbytes,
        wanted=config.num_kv_blocks,
    )
    pool = KVCachePool(layers, num_blocks, config.block_size, dtype, path=path)
    logger.info(
        "KV cache: %s of %d tokens, %.2f GiB, %d bytes a token; context %d tokens; "
        "at most %d tokens and %d sequences a step",
        ", ".join(_told(one, count) for one, count in zip(groups, num_blocks, strict=True)),
        config.block_size,
        pool.nbytes / GIB,
        sum(group.bytes_per_block for group in groups if group.window is None) // config.block_size,
        demand.max_model_len,
        demand.max_num_batched_tokens,
        demand.max_num_seqs,
    )
    return pool


def _told(group: GroupBytes, num_blocks: int) -> str:
    if group.window is None:
        return f"{num_blocks} blocks"
    return f"{num_blocks} blocks for windows of {group.window}"
