"""What a model takes on this machine, and what would serve it, told before its weights are read."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.attention.kv_groups import group_layers
from backend_metal.device import Device, select_device
from backend_metal.engine.attention_choice import choose_attention
from backend_metal.engine.memory.kv_blocks import Demand, GroupBytes, num_kv_blocks
from backend_metal.engine.memory.state_memory import StatePlan, plan_states
from backend_metal.models.load.loader import OutlinedModel, outline
from backend_metal.models.paged_model import PagedModel
from backend_metal.recurrent import StatePool
from deployments.backend import AttentionStatus, EngineConfig, ModelPlan


class SizedModel(Protocol):
    """A model, loaded or outlined."""

    @property
    def model(self) -> PagedModel: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def weight_bytes(self) -> int: ...


def plan_memory(config: EngineConfig) -> ModelPlan:
    """For the engine that ``config`` describes. A model on the hub must have been downloaded, or
    will be. Raises ``ValueError`` as ``build_engine`` does where there is no room."""
    device = select_device(config.device)
    memory_bytes = device.memory_bytes
    outlined = _outlined(config, device)
    max_model_len = context_of(config, outlined)
    demand = demand_of(config, device, max_model_len)
    states = state_plan(config, outlined, demand, memory_bytes)
    if states is not None:
        demand = replace(demand, max_num_seqs=states.num_sequences)
    groups = group_bytes(config, outlined.model)
    num_blocks = num_kv_blocks(
        groups,
        demand,
        memory_bytes=memory_bytes,
        memory_fraction=config.memory_fraction,
        weight_bytes=outlined.weight_bytes,
        state_bytes=0 if states is None else states.nbytes,
        wanted=config.num_kv_blocks,
    )
    context = max_model_len
    if groups[0].window is None:
        context = min(context, num_blocks[0] * config.block_size)
    one = replace(demand, max_model_len=context)
    kv_bytes = sum(one.held_by_one(group) * group.bytes_per_block for group in groups)
    state_bytes = 0 if states is None else states.bytes_per_slot
    return ModelPlan(
        device.name,
        memory_bytes,
        outlined.weight_bytes,
        max_model_len,
        context,
        kv_bytes + state_bytes,
    )


def check_attention(config: EngineConfig) -> AttentionStatus:
    """The attention that an engine with ``config`` would serve with: as it chooses when it starts,
    by running its kernels. Raises ``ValueError`` as ``build_engine`` does."""
    device = select_device(config.device)
    model = _outlined(config, device).model
    _, status = choose_attention(
        config.attention,
        device,
        model.layers,
        block_size=config.block_size,
        dtype=model.dtype,
        deterministic=config.deterministic,
    )
    return status


def _outlined(config: EngineConfig, device: Device) -> OutlinedModel:
    return outline(
        config.model,
        revision=config.revision,
        device=device,
        dtype=config.dtype,
        memory_limit_bytes=int(device.memory_bytes * config.memory_fraction),
        trust_remote_code=config.trust_remote_code,
        max_model_len=config.max_model_len,
    )


def context_of(config: EngineConfig, sized: SizedModel) -> int:
    """In tokens."""
    return sized.max_model_len if config.max_model_len is None else config.max_model_len


def demand_of(config: EngineConfig, device: Device, max_model_len: int) -> Demand:
    max_num_batched_tokens = config.max_num_batched_tokens or max(
        device.step_tokens, config.max_num_seqs
    )
    return Demand(config.block_size, config.max_num_seqs, max_num_batched_tokens, max_model_len)


def state_plan(
    config: EngineConfig, sized: SizedModel, demand: Demand, memory_bytes: int
) -> StatePlan | None:
    """None for a model without recurrent layers."""
    model = sized.model
    if not model.recurrent:
        return None
    return plan_states(
        budget_bytes=int(memory_bytes * config.memory_fraction) - sized.weight_bytes,
        bytes_per_slot=StatePool.bytes_per_slot(model.recurrent),
        groups=group_bytes(config, model),
        demand=demand,
        num_kv_blocks=config.num_kv_blocks,
        num_state_snapshots=config.num_state_snapshots,
    )


def group_bytes(config: EngineConfig, model: PagedModel) -> list[GroupBytes]:
    """Of the groups of layers, the one that sees all tokens first."""
    groups = []
    for group in group_layers(model.layers):
        specs = [model.layers[number].cache for number in group.layers]
        size = KVCachePool.bytes_per_block(specs, config.block_size, model.dtype)
        groups.append(GroupBytes(group.window, size))
    return groups
