"""What the engine has made for one request and nobody has read yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from deployments.backend import BackendError, Delta, Prefill

Item = Delta | Prefill | BackendError

MOST_UNREAD = 64
"""Deltas of each sequence, at which the request is paused: some seconds of an answer, so that no
reader who keeps up is ever waited for."""
FEW_UNREAD = 16
"""And at which it goes on: a pause costs up to a block's tokens, so it has to be worth it."""


class Unread:
    """A queue whose length holds its request back. Belongs to one event loop."""

    def __init__(
        self,
        num_sequences: int,
        *,
        on_made: Callable[[Delta | Prefill], None],
        pause: Callable[[], None],
        resume: Callable[[], None],
    ) -> None:
        self._on_made = on_made
        self._most = MOST_UNREAD * num_sequences
        self._few = FEW_UNREAD * num_sequences
        self._pause = pause
        self._resume = resume
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._is_paused = False

    def put(self, item: Item) -> None:
        if not isinstance(item, BackendError):
            self._on_made(item)
        self._items.put_nowait(item)
        if self._items.qsize() >= self._most and not self._is_paused:
            self._is_paused = True
            self._pause()

    async def get(self) -> Item:
        item = await self._items.get()
        if self._is_paused and self._items.qsize() <= self._few:
            self._is_paused = False
            self._resume()
        return item
