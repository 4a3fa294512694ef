"""The heart: beats at a steady pace, however long each takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import httpx

from ops.heartbeat.beat import beat
from ops.heartbeat.metrics import HeartbeatMetrics

INTERVAL_S = 5.0
# The next beats don't wait for one that hangs, so there are at most four at once.
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Heart:
    """Asks each of ``urls`` for each of ``models``."""

    urls: Sequence[str]
    models: Sequence[str]
    metrics: HeartbeatMetrics
    api_key_file: Path | None = None
    interval_s: float = INTERVAL_S
    timeout_s: float = TIMEOUT_S

    async def run(self) -> None:
        """Until it is cancelled."""
        targets = list(product(self.urls, self.models))
        for target in targets:
            self.metrics.add(*target)
        # A connection a beat, as clients who come have none yet.
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(limits=limits) as http, asyncio.TaskGroup() as beats:
            while True:
                for url, model in targets:
                    beats.create_task(self._beat(http, url, model))
                await asyncio.sleep(self.interval_s)

    async def _beat(self, http: httpx.AsyncClient, url: str, model: str) -> None:
        # Read again each time, so that a new key holds without a restart.
        key = self.api_key_file.read_text(encoding="utf-8").strip() if self.api_key_file else None
        done = await beat(http, url, model, api_key=key, timeout_s=self.timeout_s)
        self.metrics.count(url, model, done)
