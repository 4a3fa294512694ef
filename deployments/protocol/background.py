"""One thread for long pieces of Python. Tenants take turns, at the pace that the event loop allows:
while the two share an interpreter, what the event loop does goes at a fraction of its speed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

REST = 1.0
"""Times its own duration that a job keeps the thread idle: all tenants together get half of it."""
TENANT_REST = 3.0
"""Times its own duration that a job keeps its tenant's next one waiting: a quarter for each."""

T = TypeVar("T")


class LeftError(Exception):
    """No request waits any more for what the thread works on."""


@dataclass(eq=False)
class Job(Generic[T]):
    work: Callable[[], T]
    result: Future[T] = field(default_factory=Future)
    is_left: bool = False


_running: ContextVar[Job[Any] | None] = ContextVar("running", default=None)
"""In the thread."""


def end_if_left() -> None:
    """For work in steps, between two of them. Raises ``LeftError``."""
    job = _running.get()
    if job is not None and job.is_left:
        raise LeftError


class Turns:
    """Which job is next: round robin over the tenants that don't rest. Times are in seconds."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Job[Any]]] = {}
        """By tenant; the first one has the next turn."""
        self._resting: dict[str, float] = {}
        """Tenants that have had a turn, until when."""
        self._idle_until = 0.0

    def add(self, tenant: str, job: Job[Any]) -> None:
        self._waiting.setdefault(tenant, deque()).append(job)

    def leave(self, tenant: str, job: Job[Any]) -> None:
        """Give up the place in the line, if it is there yet: a queued body holds memory."""
        jobs = self._waiting.get(tenant, deque())
        if job in jobs:
            jobs.remove(job)
            if not jobs:
                del self._waiting[tenant]

    def next(self, now: float) -> tuple[str, Job[Any]] | None:
        """The tenant whose turn it is, and its job; it ends with ``ended``."""
        self._resting = {one: until for one, until in self._resting.items() if until > now}
        able = (one for one in self._waiting if one not in self._resting)
        if now < self._idle_until or (tenant := next(able, None)) is None:
            return None
        jobs = self._waiting.pop(tenant)
        job = jobs.popleft()
        if jobs:
            self._waiting[tenant] = jobs
        return tenant, job

    def wait_s(self, now: float) -> float | None:
        """Until ``next`` may have one; None: no job waits."""
        if not self._waiting:
            return None
        rested = min(self._resting.get(tenant, now) for tenant in self._waiting)
        return max(rested, self._idle_until) - now

    def ended(self, tenant: str, began: float, now: float) -> None:
        took = now - began
        self._idle_until = now + REST * took
        self._resting[tenant] = now + TENANT_REST * took


class Background:
    def __init__(self, name: str) -> None:
        self._name = name
        self._turns = Turns()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], T], *, tenant: str = "") -> T:
        """Cancelling it takes ``work`` out of the line, or ends it at its next step."""
        job = Job(work)
        with self._changed:
            self._turns.add(tenant, job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            return await asyncio.wrap_future(job.result)
        except asyncio.CancelledError:
            job.is_left = True
            with self._changed:
                self._turns.leave(tenant, job)
            raise

    def _work(self) -> None:
        while True:
            with self._changed:
                while (found := self._turns.next(time.monotonic())) is None:
                    self._changed.wait(self._turns.wait_s(time.monotonic()))
            tenant, job = found
            began = time.monotonic()
            _do(job)
            with self._changed:
                self._turns.ended(tenant, began, time.monotonic())
            # The next one may be long in coming, and a job holds a body.
            del found, job


def _do(job: Job[Any]) -> None:
    if not job.result.set_running_or_notify_cancel():
        return
    token = _running.set(job)
    try:
        job.result.set_result(job.work())
    except BaseException as error:  # noqa: BLE001 A panic in Rust is no ``Exception``.
        job.result.set_exception(error)
    finally:
        _running.reset(token)
