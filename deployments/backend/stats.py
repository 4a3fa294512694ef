"""What a backend says of itself: counters and histograms for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Histogram:
    """``counts[i]`` observations were at most ``bounds[i]``; the last count had no bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True)
class BackendStats:
    """A consistent snapshot. Counters and histograms only grow; times are in seconds."""

    requests_running: int
    requests_waiting: int
    kv_cache_blocks_total: int
    kv_cache_blocks_free: int
    """Blocks that a new sequence could take, cached ones included."""
    memory_active_bytes: int
    request_success: Mapping[str, int]
    """By finish reason; a request counts once, with its last sequence."""
    request_failure: Mapping[str, int]
    """By error type: ``BackendError.error_type``."""
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_hit_tokens: int
    prefix_cache_query_tokens: int
    preemptions: int
    steps: int
    attention_launches: Mapping[str, int]
    """By path: metal, cuda, cpu, reference."""
    time_to_first_token: Histogram
    time_per_output_token: Histogram
    inter_token_latency: Histogram
    e2e_request_latency: Histogram
    queue_time: Histogram
    step_duration: Histogram
    prefix_cache_misses: Mapping[str, int] = field(default_factory=dict)
    """Requests by ``PrefixMiss``; none for those whose whole prompt was found."""
    forced_tokens: int = 0
    """Of the generated tokens, those that needed no draw: nothing else was left to come."""
    step_tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens that went through the model, by phase: prefill, decode."""
    step_sequences: Mapping[str, int] = field(default_factory=dict)
    """Sequences summed over all steps, by phase: over ``steps``, the mean batch."""

    @property
    def kv_cache_usage_ratio(self) -> float:
        return 1.0 - self.kv_cache_blocks_free / self.kv_cache_blocks_total
