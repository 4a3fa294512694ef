"""What a model is told to take before its weights are read, against the engine that loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.device import Device
from backend_metal.engine.build import build_engine
from backend_metal.engine.plan import plan_memory
from deployments.backend import EngineConfig
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.checkpoints import CPU, PLENTY, load_cpu, save_quantized

BLOCK_SIZE = 8
FAMILIES = ["qwen3", "gemma3_text", "deepseek_v2", "falcon_h1", "mamba"]
"""All tokens, windows beside them, latents, recurrent layers beside attention, and nothing else."""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(Device, "memory_bytes", PLENTY)
    return PLENTY


def config_of(path: Path, **settings: object) -> EngineConfig:
    given = {"model": str(path), "device": "cpu", "block_size": BLOCK_SIZE, "max_num_seqs": 4}
    return EngineConfig.model_validate(given | settings)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_is_what_the_engine_takes(
    family: str, tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = []

    def recorded(*arguments: Any, **options: Any) -> KVCachePool:
        pools.append(KVCachePool(*arguments, **options))
        return pools[-1]

    monkeypatch.setattr("backend_metal.engine.build.KVCachePool", recorded)
    tiny_models.save(family, tmp_path)
    config = config_of(tmp_path)
    plan = plan_memory(config)
    assert plan.memory_bytes == memory
    assert plan.weight_bytes == load_cpu(tmp_path).weight_bytes
    engine = build_engine(config.model_copy(update={"max_num_seqs": 1}))
    assert plan.context == plan.max_model_len == engine.max_model_len
    [pool] = pools
    # Of an engine that runs one sequence, whatever it holds of windows and state on top.
    if family in ("qwen3", "deepseek_v2"):
        assert plan.sequence_bytes == pool.nbytes
    else:
        assert plan.sequence_bytes <= pool.nbytes + engine.stats().state_bytes


def test_quantized_weights_are_counted_as_they_stay(tmp_path: Path, memory: int) -> None:
    save_quantized("qwen3", tmp_path, dtype=mx.bfloat16)
    assert plan_memory(config_of(tmp_path)).weight_bytes == load_cpu(tmp_path).weight_bytes


def test_a_machine_with_less_memory_has_a_shorter_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.save("qwen3", tmp_path)
    monkeypatch.setattr(Device, "memory_bytes", PLENTY)
    whole = plan_memory(config_of(tmp_path))
    of_block = whole.sequence_bytes * BLOCK_SIZE // whole.context
    tight = int((whole.weight_bytes + 3.5 * of_block) / 0.8)
    monkeypatch.setattr(Device, "memory_bytes", tight)
    plan = plan_memory(config_of(tmp_path))
    assert plan.context == 3 * BLOCK_SIZE < plan.max_model_len
    assert plan.needed_bytes == plan.weight_bytes + 3 * of_block <= 0.8 * tight
    monkeypatch.setattr(Device, "memory_bytes", whole.weight_bytes)
    with pytest.raises(ValueError, match="the weights take"):
        plan_memory(config_of(tmp_path))


def test_no_weight_is_read(tmp_path: Path, memory: int) -> None:
    tiny_models.save("qwen3", tmp_path)
    mx.set_default_device(CPU.mlx)
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    plan = plan_memory(config_of(tmp_path))
    assert mx.get_peak_memory() - before < plan.weight_bytes // 4
