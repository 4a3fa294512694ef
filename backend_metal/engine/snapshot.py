"""What an engine says of itself."""

from __future__ import annotations

import mlx.core as mx

from backend_metal.attention.operators import attention_launches
from backend_metal.engine.schedule.scheduler import Scheduler
from backend_metal.engine.schedule.sequence import Status
from backend_metal.engine.schedule.state_slots import StateSlots
from backend_metal.engine.schedule.step import Step
from backend_metal.engine.stats import StatsRecorder
from deployments.backend import BackendStats


def snapshot(
    stats: StatsRecorder, scheduler: Scheduler, *, num_requests: int, step: Step | None
) -> BackendStats:
    """``num_requests``: that have not ended. ``step``: the one under way."""
    pool, others = scheduler.groups[0].pool, scheduler.groups[1:]
    ending = [item.sequence for item in step.scheduled] if step else []
    running = {
        sequence.request_id
        for sequence in (*scheduler.running, *ending)
        if sequence.status in (Status.RUNNING, Status.ENDING)
    }
    of_states = _state_stats(scheduler.states) if scheduler.states is not None else {}
    return BackendStats(
        requests_running=len(running),
        requests_waiting=num_requests - len(running),
        kv_cache_blocks_total=pool.num_blocks,
        kv_cache_blocks_free=pool.num_free,
        kv_cache_blocks_cached=pool.num_kept,
        kv_cache_window_usage_ratios={
            group.window: 1.0 - group.pool.num_free / group.pool.num_blocks
            for group in others
            if group.window is not None
        },
        memory_active_bytes=mx.get_active_memory(),
        request_success=dict(stats.request_success),
        request_failure=dict(stats.request_failure),
        prompt_tokens=stats.prompt_tokens,
        generation_tokens=stats.generation_tokens,
        grammar_dead_ends=stats.grammar_dead_ends,
        forced_tokens=stats.forced_tokens,
        prefix_cache_hit_tokens=scheduler.num_prefix_hit_tokens,
        prefix_cache_query_tokens=scheduler.num_prefix_query_tokens,
        prefix_cache_misses=dict(scheduler.prefix_misses),
        preemptions=scheduler.num_preemptions,
        steps=stats.steps,
        attention_launches=attention_launches(),
        step_tokens=dict(stats.step_tokens),
        step_sequences=dict(stats.step_sequences),
        time_to_first_token=stats.time_to_first_token.snapshot(),
        time_per_output_token=stats.time_per_output_token.snapshot(),
        inter_token_latency=stats.inter_token_latency.snapshot(),
        e2e_request_latency=stats.e2e_request_latency.snapshot(),
        queue_time=stats.queue_time.snapshot(),
        step_duration=stats.step_duration.snapshot(),
        step_host={part: recorder.snapshot() for part, recorder in stats.step_host.items()},
        **of_states,
    )


def _state_stats(states: StateSlots) -> dict[str, int]:
    return {
        "state_slots": states.num_slots,
        "state_slots_free": states.num_free,
        "state_snapshots": states.num_snapshots,
        "state_snapshots_taken": states.num_snapshots_taken,
        "state_snapshots_evicted": states.num_snapshots_evicted,
        "state_bytes": states.num_slots * states.bytes_per_slot,
    }
