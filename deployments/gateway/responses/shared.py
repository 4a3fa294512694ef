"""A gateway's end of the store: never waited for longer than a moment, and counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from deployments.gateway.responses.store import (
    ResponseStore,
    StoredResponse,
    StoreStats,
    StoreUnavailableError,
)
from deployments.observe.stored_responses import StoredResponseMetrics

logger = logging.getLogger(__name__)

TIMEOUT_S = 2.0
REST_S = 5.0
"""After a failure, for so long nobody waits for the store at all."""
READS_EVERY_S = 10.0

T = TypeVar("T")


class SharedStore:
    def __init__(
        self,
        store: ResponseStore,
        metrics: StoredResponseMetrics,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._now = now
        self._rests_until = 0.0

    async def put(self, tenant: str, response: StoredResponse) -> bool:
        """Whether it is kept. A store that doesn't answer keeps nothing."""
        try:
            is_kept = await self._in_time(lambda: self._store.put(tenant, response))
        except StoreUnavailableError as error:
            self._metrics.wrote("failed")
            logger.warning("%s is not kept by the store of responses: %s", response.id, error)
            return False
        self._metrics.wrote("kept" if is_kept else "too_large")
        return is_kept

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Raises ``StoreUnavailableError``, like all that follow."""
        return await self._in_time(lambda: self._store.get(tenant, response_id))

    async def items(self, tenant: str, item_ids: Sequence[str]) -> Mapping[str, bytes]:
        return await self._in_time(lambda: self._store.items(tenant, item_ids))

    async def delete(self, tenant: str, response_id: str) -> bool:
        return await self._in_time(lambda: self._store.delete(tenant, response_id))

    async def read_for_ever(self, every_s: float = READS_EVERY_S) -> None:
        """Have the metrics follow the store, which has none of its own."""
        while True:
            try:
                self._tell(await self._in_time(self._store.stats))
            except StoreUnavailableError:
                self._metrics.lost()
            except Exception:
                self._metrics.lost()
                logger.exception("The store of responses gave no statistics.")
            await asyncio.sleep(every_s)

    def _tell(self, stats: StoreStats) -> None:
        self._metrics.holds(stats.num_responses, stats.num_bytes, stats.num_evicted)

    async def _in_time(self, ask: Callable[[], Awaitable[T]]) -> T:
        if self._now() < self._rests_until:
            raise StoreUnavailableError("it did not answer of late")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await ask()
        except TimeoutError as error:
            self._rests_until = self._now() + REST_S
            raise StoreUnavailableError(f"no answer in {TIMEOUT_S:g} s") from error
        except StoreUnavailableError:
            self._rests_until = self._now() + REST_S
            raise
