"""The fake backend as engines are: ahead of its readers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from deployments.backend import BackendError, Delta, GenerationRequest, Prefill
from tests.support.deployments.fake_backend import FakeBackend

Item = Delta | Prefill | BackendError | None
MOST_AHEAD = 16
"""Deltas of each sequence."""


class EagerBackend(FakeBackend):
    """Counts what it does for each tenant, whether anybody reads it or not, and tells ``on_used``
    whose count has grown."""

    def __init__(self, on_used: Callable[[str], None]) -> None:
        super().__init__()
        self.used = Counter[str]()
        """Tokens of prompts that have begun, and those that were generated."""
        self.num_sequences = Counter[str]()
        self._on_used = on_used

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Prefill, None]:
        made: asyncio.Queue[Item] = asyncio.Queue(MOST_AHEAD * request.n)
        making = asyncio.create_task(self._make(request, made))
        self.num_sequences[request.tenant] += request.n
        try:
            while (item := await made.get()) is not None:
                if isinstance(item, BackendError):
                    raise item
                yield item
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
            self.num_sequences[request.tenant] -= request.n

    async def _make(self, request: GenerationRequest, made: asyncio.Queue[Item]) -> None:
        has_begun = False
        try:
            async with aclosing(super().generate(request)) as items:
                async for item in items:
                    if isinstance(item, Delta):
                        self._count(request.tenant, item, is_first=not has_begun)
                        has_begun = True
                    await made.put(item)
        except BackendError as error:
            await made.put(error)
        else:
            await made.put(None)

    def _count(self, tenant: str, delta: Delta, *, is_first: bool) -> None:
        self.used[tenant] += delta.num_prompt_tokens if is_first else 0
        self.used[tenant] += 0 if delta.replayed else len(delta.token_ids)
        self._on_used(tenant)
