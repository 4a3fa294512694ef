"""A line every few seconds on what an engine does, for as long as it does something."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from deployments.backend import BackendStats

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0


async def log_load(stats: Callable[[], BackendStats]) -> None:
    """Until it is cancelled."""
    before = stats()
    while True:
        await asyncio.sleep(INTERVAL_S)
        try:
            after = stats()
            if told := load_summary(before, after, INTERVAL_S):
                logger.info("%s", told)
            before = after
        except Exception:
            logger.exception("The load of this interval is not logged.")


def load_summary(before: BackendStats, after: BackendStats, seconds: float) -> str | None:
    """None if nothing was computed between the two."""
    if after.steps == before.steps:
        return None
    prompt = after.prompt_tokens - before.prompt_tokens
    generated = after.generation_tokens - before.generation_tokens
    told = [
        f"{after.requests_running} running",
        f"{after.requests_waiting} waiting",
        f"{prompt / seconds:.0f} prompt tokens/s",
        f"{generated / seconds:.0f} generated tokens/s",
        f"KV cache {after.kv_cache_usage_ratio:.0%}",
    ]
    if queried := after.prefix_cache_query_tokens - before.prefix_cache_query_tokens:
        hits = after.prefix_cache_hit_tokens - before.prefix_cache_hit_tokens
        told.append(f"prefix cache hits {hits / queried:.0%}")
    return ", ".join(told)
