"""A thread for long pieces of Python, at the pace that the event loop's own work allows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

REST = 3.0
"""Times as long as it took does a piece of work keep the next one waiting."""

T = TypeVar("T")


class Background:
    """Does one thing at a time, and nothing most of the time, however much there is to do: what the
    event loop does beside it goes at a fraction of its speed while the two share an interpreter."""

    def __init__(
        self,
        name: str,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._now = now
        self._sleep = sleep
        self._rests_until = 0.0

    async def run(self, work: Callable[[], T]) -> T:
        """Who is cancelled before it is begun gives up the place in the line."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(self._do, work))

    def _do(self, work: Callable[[], T]) -> T:
        began = self._now()
        if began < self._rests_until:
            self._sleep(self._rests_until - began)
            began = self._now()
        try:
            return work()
        finally:
            ended = self._now()
            self._rests_until = ended + REST * (ended - began)
