"""Long pieces of work, one at a time and with rests."""

from __future__ import annotations

import asyncio
import threading

import pytest

from deployments.protocol.background import REST, Background


class Clock:
    """On which work takes as long as it says, and sleep as long as it is asked to."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds

    def work(self, seconds: float) -> float:
        self.seconds += seconds
        return seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def background(clock: Clock) -> Background:
    return Background("test", now=clock.now, sleep=clock.sleep)


async def test_each_keeps_the_next_one_waiting(background: Background, clock: Clock) -> None:
    done = [await background.run(lambda s=s: clock.work(s)) for s in (2.0, 1.0, 0.5)]  # type: ignore[misc]
    assert done == [2.0, 1.0, 0.5]
    assert clock.slept == [2.0 * REST, 1.0 * REST]


async def test_none_waits_that_comes_later(background: Background, clock: Clock) -> None:
    await background.run(lambda: clock.work(2.0))
    clock.seconds += 2.0 * REST
    await background.run(lambda: clock.work(2.0))
    assert clock.slept == []


async def test_what_fails_is_told_and_takes_time(background: Background, clock: Clock) -> None:
    def fail() -> None:
        clock.work(1.0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await background.run(fail)
    await background.run(lambda: None)
    assert clock.slept == [1.0 * REST]


async def test_who_leaves_is_not_waited_for(background: Background) -> None:
    begun, release, done = threading.Event(), threading.Event(), list[str]()

    def hold() -> None:
        begun.set()
        release.wait()

    first = asyncio.ensure_future(background.run(hold))
    leaving = asyncio.ensure_future(background.run(lambda: done.append("gone")))
    staying = asyncio.ensure_future(background.run(lambda: done.append("there")))
    await asyncio.to_thread(begun.wait)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    release.set()
    await asyncio.gather(first, staying)
    assert done == ["there"]
