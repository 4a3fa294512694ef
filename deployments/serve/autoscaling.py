"""Autoscaling: one replica on every host that may have one, or fewer for little load.

Serve's controller asks ``HostPolicy`` ten times a second. Serve's own figures of load are no help,
as gateways relay past Serve: engines report theirs (``engine_load``).
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import ray
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from deployments.backend import BackendStats
from deployments.settings import AutoscalingSettings

LOAD = "load"
"""Among the figures that an engine reports to Serve."""
HYSTERESIS = 0.8
"""An engine is given up only if the others then have this part of the load that they may have."""
LOST_HOST_S = 15.0
"""Longer than hosts are missing while the head is restarted."""
COUNT_INTERVAL_S = 1.0
LOOK_BACK_S = 20.0
MOST_REPLICAS = 10_000


def autoscaling_config(
    *, resource: str | None, initial: int, scaling: AutoscalingSettings
) -> AutoscalingConfig:
    """``HostPolicy`` has the bounds and the delays, and Serve gets none in its way."""
    if scaling.max_replicas is not None:
        initial = min(initial, scaling.max_replicas)
    return AutoscalingConfig(
        min_replicas=0,
        max_replicas=MOST_REPLICAS,
        # Where the load counts, a new deployment is to leave the number as it is.
        initial_replicas=initial if scaling.min_replicas is None else None,
        upscale_delay_s=0.0,
        downscale_delay_s=0.0,
        look_back_period_s=LOOK_BACK_S,
        policy=AutoscalingPolicy(  # type: ignore[no-untyped-call]
            policy_function="deployments.serve.autoscaling:HostPolicy",
            policy_kwargs={"resource": resource, **scaling.model_dump(mode="json")},
        ),
    )


def count_hosts(resource: str | None) -> int:
    """Hosts that declare ``resource``, or all of them."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    declared = [node["Resources"] for node in nodes if node["Alive"]]
    return sum(resource is None or resources.get(resource, 0) >= 1 for resources in declared)


def engine_load(stats: BackendStats, max_num_seqs: int) -> float:
    """What an engine has to do, in full engines; past 1 requests wait."""
    running = max(stats.requests_running / max_num_seqs, stats.kv_cache_usage_ratio)
    return running + stats.requests_waiting / max_num_seqs


def replicas_for(load: float, current: int, target_load: float) -> int:
    """For ``load`` in full engines, of which each is to have at most ``target_load``."""
    enough = math.ceil(load / target_load)
    plenty = math.ceil(load / (target_load * HYSTERESIS))
    return min(max(current, enough), plenty)


class Highest:
    """The highest value of the last ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._falling: deque[tuple[float, int]] = deque()

    def add(self, now: float, value: int) -> int:
        while self._falling and self._falling[-1][1] <= value:
            self._falling.pop()
        self._falling.append((now, value))
        while self._falling[0][0] < now - self._seconds:
            self._falling.popleft()
        return self._falling[0][1]


class Delayed:
    """Goes up to what was wanted all through ``up_s``, and down to the most within ``down_s``."""

    def __init__(self, up_s: float, down_s: float) -> None:
        self._most = Highest(down_s)
        self._least = Highest(up_s)
        self._is_new = True

    def follow(self, now: float, current: int, wanted: int) -> int:
        if self._is_new:
            self._most.add(now, current)
            self._least.add(now, -current)
            self._is_new = False
        most, least = self._most.add(now, wanted), -self._least.add(now, -wanted)
        return min(max(current, least), most)


class HostPolicy:
    """A class, so that it remembers: Serve makes one for each deployment."""

    def __init__(self, *, resource: str | None, **scaling: Any) -> None:
        self._resource = resource
        self._scaling = AutoscalingSettings(**scaling)
        self._capacity = Highest(LOST_HOST_S)
        self._delayed = Delayed(self._scaling.upscale_delay_s, self._scaling.downscale_delay_s)
        self._counted_at = -math.inf
        self._num_hosts = 0

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        now = float(context.current_time or 0.0)
        if self._counted_at == -math.inf:
            # The controller may have started again, with the head, before all hosts are back.
            self._capacity.add(now, context.target_num_replicas)
        hosts = self._count(now)
        wanted = self._capacity.add(now, hosts)
        if self._scaling.max_replicas is not None:
            wanted = min(wanted, self._scaling.max_replicas)
        if self._scaling.min_replicas is not None:
            wanted = min(self._for_load(now, context, self._scaling.min_replicas), wanted)
        if context.current_num_replicas > hosts:
            # Serve has not noticed whose host is gone, and might stop a replica that lives.
            wanted = max(wanted, context.target_num_replicas)
        return wanted, {}

    def _for_load(self, now: float, context: AutoscalingContext, least: int) -> int:
        wanted = current = context.target_num_replicas
        if loads := (context.aggregated_metrics or {}).get(LOAD):
            wanted = replicas_for(sum(loads.values()), current, self._scaling.target_load)
        return max(self._delayed.follow(now, current, wanted), least)

    def _count(self, now: float) -> int:
        if now - self._counted_at >= COUNT_INTERVAL_S:
            self._num_hosts = count_hosts(self._resource)
            self._counted_at = now
        return self._num_hosts
