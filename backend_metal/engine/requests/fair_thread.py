"""A thread for what takes time before a request gets to the engine."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from bisect import insort
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from deployments.backend import EngineStoppedError, QueueFullError, UnavailableError

T = TypeVar("T")


@dataclass(eq=False)
class _Task:
    work: Callable[[], Any]
    deadline: float
    result: asyncio.Future[Any] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class FairThread:
    """Does one thing at a time, for one tenant after another; who leaves gives up the place in the
    line. What takes longer than ``limit_s`` counts as hung: nothing ends it but the end of the
    process. At most ``most_waiting`` wait, of one tenant no more than leave as much room for
    others. Belongs to one event loop."""

    def __init__(
        self,
        name: str,
        *,
        limit_s: float,
        most_waiting: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._limit_s = limit_s
        self._most_waiting = most_waiting
        self._now = now
        self._waiting: dict[str, list[_Task]] = {}
        """By tenant, of whom the first one is next; each one's by deadline."""
        self._running: _Task | None = None
        self._began = 0.0
        self._handed_over: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    async def run(self, tenant: str, work: Callable[[], T], *, patience_s: float = 0.0) -> T:
        """Of one tenant's, those that come up to ``patience_s`` later and have none go first.
        Raises ``QueueFullError``."""
        self._check_room(tenant)
        task = _Task(work, self._now() + patience_s)
        insort(self._waiting.setdefault(tenant, []), task, key=lambda task: task.deadline)
        self._start_next()
        try:
            result: T = await task.result
        finally:
            self._forget(tenant, task)
        return result

    def check_health(self) -> None:
        if self._running is not None and self._now() - self._began > self._limit_s:
            raise UnavailableError(f"{self._name} has taken longer than {self._limit_s:g} s")

    def stop(self) -> None:
        """Nobody waits any longer. Idempotent."""
        self._handed_over.put(None)
        tasks = [task for tasks in self._waiting.values() for task in tasks]
        for task in [*tasks, *([self._running] if self._running else [])]:
            if not task.result.done():
                task.result.set_exception(EngineStoppedError("the engine stopped"))
        self._waiting.clear()

    def _check_room(self, tenant: str) -> None:
        if self._running is None:
            return
        room = self._most_waiting - sum(map(len, self._waiting.values()))
        if room <= 0:
            raise QueueFullError(f"too much waits for {self._name}", retry_after=1)
        if tenant and len(self._waiting.get(tenant, ())) >= room:
            raise QueueFullError(
                f"this API key has too much waiting for {self._name}",
                retry_after=1,
                for_tenant=True,
            )

    def _start_next(self) -> None:
        if self._running is not None or not self._waiting:
            return
        tenant = next(iter(self._waiting))
        tasks = self._waiting.pop(tenant)
        self._running, self._began = tasks.pop(0), self._now()
        if tasks:
            self._waiting[tenant] = tasks
        if self._thread.ident is None:
            self._thread.start()
        self._handed_over.put(self._running)

    def _forget(self, tenant: str, task: _Task) -> None:
        tasks = self._waiting.get(tenant, [])
        with suppress(ValueError):
            tasks.remove(task)
            if not tasks:
                del self._waiting[tenant]

    def _end(self, deliver: Callable[[Any], None], outcome: Any) -> None:
        running, self._running = self._running, None
        if running and not running.result.done():
            deliver(outcome)
        self._start_next()

    def _run(self) -> None:
        while (task := self._handed_over.get()) is not None:
            result = task.result
            try:
                end = partial(self._end, result.set_result, task.work())
            except BaseException as error:  # noqa: BLE001 A panic in Rust is no ``Exception``.
                end = partial(self._end, result.set_exception, error)
            # A loop that is closed has nobody left who waits.
            with suppress(RuntimeError):
                result.get_loop().call_soon_threadsafe(end)
