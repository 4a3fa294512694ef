"""What the engine itself counts of a key's tokens, whose clients do what they like."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from backend_metal.backend import MlxBackend
from deployments.backend import EngineConfig
from deployments.gateway.access.api_keys import KeyRing
from deployments.gateway.access.rate_limits import RateLimiter
from deployments.replica.app import build_replica_app
from tests.support.backend_metal import tiny_models
from tests.support.clock import Clock
from tests.support.deployments.gateway_harness import SECRET, gateway, replica_at, serving
from tests.support.deployments.mixes import Mix

NUM_MIXES = 6
SLOTS = 8


async def tokens_used(config: EngineConfig, mix: Mix, clock: Clock) -> int:
    """Of prompts and answers, as the engine counts them."""
    backend = MlxBackend()
    app = build_replica_app(
        backend=backend,
        model=await backend.start(config),
        secret=SECRET,
        registry=CollectorRegistry(),
        on_failure=lambda error_type: None,
        max_body_bytes=1 << 20,
        keep_alive_interval_s=0.05,
    )
    keys, limiter = KeyRing([mix.api_key]), RateLimiter(clock=clock)
    async with serving(app) as url, gateway([replica_at(url)], keys=keys, limiter=limiter) as gate:
        await mix.run(gate.url, clock)
    await backend.stop()
    return backend.stats().prompt_tokens + backend.stats().generation_tokens


async def test_the_engine_does_no_more_for_a_key_than_its_limit_allows(tmp_path: Path) -> None:
    tiny_models.save("qwen3", tmp_path)
    config = EngineConfig(
        model=str(tmp_path),
        served_model_name="demo",
        device="cpu",
        num_kv_blocks=256,
        max_num_seqs=SLOTS,
        max_model_len=512,
    )
    mixes = [(Mix(number), Clock()) for number in range(NUM_MIXES)]
    used = [await tokens_used(config, mix, clock) for mix, clock in mixes]
    # One step gives each sequence that runs a token.
    allowed = [mix.allowed(clock) + SLOTS for mix, clock in mixes]
    assert [most for most, one in zip(allowed, used, strict=True) if one > most] == []
    # They came up against it.
    assert sum(used) > sum(allowed) // 4
