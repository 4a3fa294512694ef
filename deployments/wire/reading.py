"""A replica's reading of itself and of its host, for gateways that show the fleet.

Hosts are updated one after another: what the other side does not know yet it leaves out, and what
it does not know any more is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

READING_PATH = "/reading"


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class HostReading(_Told):
    """The machine. ``null``: its system doesn't tell."""

    name: str = Field("", description="As the machine calls itself.")
    chip: str | None = Field(None, description="Its processor, by its vendor's name.")
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = Field(
        None, description="Memory that programs could still get."
    )
    memory_pressure_level: int | None = Field(
        None, description="What macOS makes of it: 0 normal, 1 warning, 2 critical."
    )
    swap_used_bytes: int | None = None
    temperature_celsius: float | None = Field(None, description="Of the hottest sensor.")
    thermal_pressure_level: int | None = Field(
        None,
        description="What macOS does against heat: 0 nominal, 1 moderate, 2 heavy, 3 trapping.",
    )
    gpu_utilization_ratio: float | None = None


class Lane(_Told):
    """A sequence that the engine has, waiting, in its prefill or decoding. Nothing of its text."""

    id: str = Field(description="Of this sequence, in every reading of it.")
    prompt_tokens: int
    computed_tokens: int = Field(description="Of the prompt: computed, or cached.")
    generated_tokens: int
    tenant: str = ""


class CacheReading(_Told):
    """Prompt tokens looked up in the prefix cache, and found there."""

    hit_tokens: int = 0
    query_tokens: int = 0

    def __add__(self, other: CacheReading) -> CacheReading:
        return CacheReading(
            hit_tokens=self.hit_tokens + other.hit_tokens,
            query_tokens=self.query_tokens + other.query_tokens,
        )


class EngineReading(_Told):
    """One engine, and the host that it runs on. Counters only grow."""

    version: str | None = Field(None, description="Of Pomona.")
    is_draining: bool = False
    requests_running: int = 0
    requests_waiting: int = 0
    max_num_seqs: int = Field(0, description="Most sequences in the batch.")
    kv_cache_blocks_total: int = 0
    kv_cache_blocks_free: int = Field(
        0, description="What a new sequence could take, cached ones included."
    )
    kv_cache_blocks_cached: int = Field(
        0, description="Of the free ones, those that a prompt with the same beginning would find."
    )
    kv_cache_usage_ratio: float = Field(0.0, description="Of whatever layers have the least left.")
    memory_active_bytes: int = Field(0, description="Memory that the engine's arrays hold.")
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_hit_tokens: int = 0
    prefix_cache_query_tokens: int = 0
    preemptions: int = 0
    attention: str | None = Field(None, description="The path that serves.")
    lanes: tuple[Lane, ...] = Field(
        (), description="The oldest first; no more than there are places in the batch, twice."
    )
    tenant_caches: Mapping[str, CacheReading] = Field({}, description="Of each tenant's prompts.")
    host: HostReading = HostReading()
