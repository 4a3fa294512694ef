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
    """Of the layers that see all tokens; if none do, of those with the widest window."""
    kv_cache_blocks_free: int
    """Of these, what a new sequence could take, cached ones included."""
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
    grammar_dead_ends: int = 0
    """Requests that failed because a grammar left no token, and was not complete."""
    forced_tokens: int = 0
    """Of the generated tokens, those that needed no draw: nothing else was left to come."""
    step_tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens that went through the model, by phase: prefill, decode."""
    step_sequences: Mapping[str, int] = field(default_factory=dict)
    """Sequences summed over all steps, by phase: over ``steps``, the mean batch."""
    step_host: Mapping[str, Histogram] = field(default_factory=dict)
    """Of a step, what the host did, by part: some parts take place while the device runs."""

    state_slots: int = 0
    """For the state of recurrent layers, of sequences that run and in snapshots; 0: the model has
    no such layers."""
    state_slots_free: int = 0
    """Slots that a new sequence could take, snapshots that nobody reads included."""
    state_snapshots: int = 0
    """That can be found."""
    state_snapshots_taken: int = 0
    state_snapshots_evicted: int = 0
    """For others, or for a sequence's own state."""
    state_bytes: int = 0
    """Of all slots."""
    kv_cache_window_usage_ratios: Mapping[int, float] = field(default_factory=dict)
    """By window, in tokens: the part of the blocks of all other layers that is held."""

    kv_cache_blocks_cached: int = 0
    """Of the free blocks, those whose content a prompt would still find."""

    @property
    def kv_cache_usage_ratio(self) -> float:
        """Of whatever layers have the least left."""
        own = 1.0 - self.kv_cache_blocks_free / self.kv_cache_blocks_total
        return max(own, *self.kv_cache_window_usage_ratios.values(), 0.0)
