"""What a replica tells gateways of itself and of its host."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

from deployments.backend import Backend, ModelInfo
from deployments.observe.host.reading import (
    GPU_UTILIZATION,
    MEMORY_AVAILABLE,
    MEMORY_PRESSURE,
    MEMORY_TOTAL,
    SWAP_USED,
    TEMPERATURE,
    THERMAL_PRESSURE,
    Metric,
    Reading,
)
from deployments.replica.attempts import Attempts
from deployments.wire.reading import EngineReading, HostReading

LANES_PER_PLACE = 2
"""Those that run, and as many that wait: nobody looks at more."""


@dataclass(frozen=True)
class HostReader:
    """``readings``: the latest, in whatever order."""

    readings: Callable[[], Sequence[Reading]] = tuple
    chip: str | None = None
    name: str = field(default_factory=socket.gethostname)

    def read(self) -> HostReading:
        found = self.readings()
        return HostReading(
            name=self.name.partition(".")[0],
            chip=self.chip,
            memory_total_bytes=_whole(found, MEMORY_TOTAL),
            memory_available_bytes=_whole(found, MEMORY_AVAILABLE),
            memory_pressure_level=_whole(found, MEMORY_PRESSURE),
            swap_used_bytes=_whole(found, SWAP_USED),
            temperature_celsius=_largest(found, TEMPERATURE),
            thermal_pressure_level=_whole(found, THERMAL_PRESSURE),
            gpu_utilization_ratio=_largest(found, GPU_UTILIZATION),
        )


@dataclass(frozen=True)
class EngineReader:
    backend: Backend
    model: ModelInfo
    attempts: Attempts
    max_num_seqs: int
    host: HostReader
    is_leaving: Callable[[], bool]
    version: str = field(default_factory=partial(version, "pomona-serve"))

    def read(self) -> EngineReading:
        stats = self.backend.stats()
        return EngineReading(
            version=self.version,
            is_draining=self.is_leaving(),
            requests_running=stats.requests_running,
            requests_waiting=stats.requests_waiting,
            max_num_seqs=self.max_num_seqs,
            kv_cache_blocks_total=stats.kv_cache_blocks_total,
            kv_cache_blocks_free=stats.kv_cache_blocks_free,
            kv_cache_blocks_cached=stats.kv_cache_blocks_cached,
            kv_cache_usage_ratio=stats.kv_cache_usage_ratio,
            memory_active_bytes=stats.memory_active_bytes,
            prompt_tokens=stats.prompt_tokens,
            generation_tokens=stats.generation_tokens,
            prefix_cache_hit_tokens=stats.prefix_cache_hit_tokens,
            prefix_cache_query_tokens=stats.prefix_cache_query_tokens,
            preemptions=stats.preemptions,
            attention=self.model.attention.path if self.model.attention else None,
            lanes=self.attempts.lanes(LANES_PER_PLACE * self.max_num_seqs),
            tenant_caches=self.attempts.tenant_caches(),
            host=self.host.read(),
        )


def _largest(readings: Iterable[Reading], metric: Metric) -> float | None:
    return max((one.value for one in readings if one.metric is metric), default=None)


def _whole(readings: Iterable[Reading], metric: Metric) -> int | None:
    value = _largest(readings, metric)
    return None if value is None else int(value)
