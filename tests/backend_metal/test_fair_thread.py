"""A thread that serves tenants in turn, and is found out when it hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

import pytest

from backend_metal.engine.requests.fair_thread import FairThread
from deployments.backend import EngineStoppedError, QueueFullError, UnavailableError


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def thread(clock: Clock) -> AsyncIterator[FairThread]:
    made = FairThread("counting", limit_s=5.0, now=clock)
    yield made
    made.stop()


class Held:
    """The first thing that the thread does, until it is let go; what it does then is noted."""

    def __init__(self, thread: FairThread) -> None:
        self.done: list[str] = []
        self._thread = thread
        self._begun, self._release = threading.Event(), threading.Event()
        self._first = asyncio.ensure_future(thread.run("first", self._hold))

    def _hold(self) -> None:
        self._begun.set()
        self._release.wait()

    async def begun(self) -> None:
        await asyncio.to_thread(self._begun.wait)

    def add(self, tenant: str, name: str, patience_s: float = 0.0) -> asyncio.Future[None]:
        work = partial(self.done.append, name)
        return asyncio.ensure_future(self._thread.run(tenant, work, patience_s=patience_s))

    async def release(self) -> None:
        self._release.set()
        await self._first


async def test_what_is_done_comes_back(thread: FairThread) -> None:
    results = (thread.run("a", partial(str, number)) for number in range(3))
    assert await asyncio.gather(*results) == ["0", "1", "2"]


async def test_tenants_take_turns_and_each_in_order(thread: FairThread) -> None:
    held = Held(thread)
    waiting = [held.add("many", f"many {i}") for i in range(4)]
    waiting += [held.add("few", "few 0"), held.add("one", "one 0"), held.add("few", "few 1")]
    await held.begun()
    await held.release()
    await asyncio.gather(*waiting)
    assert held.done == ["many 0", "few 0", "one 0", "many 1", "few 1", "many 2", "many 3"]


async def test_the_patient_let_others_pass_for_a_while(thread: FairThread, clock: Clock) -> None:
    held = Held(thread)
    waiting = [held.add("a", "patient", 3.0), held.add("a", "at once")]
    await held.begun()
    for clock.seconds in (2.9, 3.1):
        waiting.append(held.add("a", f"after {clock.seconds} s"))
        await asyncio.sleep(0)
    await held.release()
    await asyncio.gather(*waiting)
    assert held.done == ["at once", "after 2.9 s", "patient", "after 3.1 s"]


async def test_who_leaves_is_not_waited_for(thread: FairThread) -> None:
    held = Held(thread)
    leaving, staying = held.add("a", "gone"), held.add("a", "there")
    await held.begun()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await held.release()
    await staying
    assert held.done == ["there"]


async def test_who_leaves_in_the_middle_leaves_the_others(thread: FairThread) -> None:
    held = Held(thread)
    staying = held.add("a", "there")
    await held.begun()
    held._first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held._first
    held._release.set()
    await staying
    assert held.done == ["there"]


@pytest.mark.parametrize("error", [ValueError("no"), RecursionError(), GeneratorExit()])
async def test_it_survives_what_fails(error: BaseException, thread: FairThread) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        await thread.run("a", fail)
    assert await thread.run("a", lambda: 5) == 5


async def test_what_takes_too_long_is_found(thread: FairThread, clock: Clock) -> None:
    held = Held(thread)
    await held.begun()
    clock.seconds = 5.0
    thread.check_health()
    clock.seconds = 5.1
    with pytest.raises(UnavailableError, match=r"^counting has taken longer than 5 s$"):
        thread.check_health()
    await held.release()
    thread.check_health()
    clock.seconds = 100.0
    await thread.run("a", lambda: None)
    thread.check_health()


async def test_nobody_waits_once_it_stops(thread: FairThread) -> None:
    held = Held(thread)
    waiting = held.add("a", "never")
    await held.begun()
    thread.stop()
    for future in (held._first, waiting):
        with pytest.raises(EngineStoppedError):
            await future
    held._release.set()
    assert held.done == []


async def test_who_waits_leaves_room_for_others() -> None:
    thread = FairThread("counting", limit_s=5.0, most_waiting=4)
    held = Held(thread)
    await held.begun()
    waiting = [held.add("greedy", f"g{number}") for number in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError, match="this API key has too much waiting") as caught:
        await held.add("greedy", "g2")
    assert caught.value.failure == "full-for-tenant"
    waiting += [held.add("other", "o0"), held.add("third", "t0")]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError, match="too much waits for counting"):
        await held.add("fourth", "f0")
    await held.release()
    await asyncio.gather(*waiting)
    await held.add("greedy", "g3")
    assert sorted(held.done) == ["g0", "g1", "g3", "o0", "t0"]
    thread.stop()
