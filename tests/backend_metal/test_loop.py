"""The engine's thread when a step never ends: noticed, and left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from backend_metal.engine.engine import Engine, Output
from backend_metal.engine.loop import MAX_STATS_AGE_S, EngineLoop
from deployments.backend import UnavailableError
from tests.support.clock import Clock

STEP_TIMEOUT_S = 60.0
Deliver = Callable[[list[Output]], None]


class HangingEngine:
    """Each step lasts until the test lets it end."""

    resident = None
    is_healthy = True
    population = 0, 0

    def __init__(self) -> None:
        self.has_work = False
        self.stepping = threading.Event()
        self.release = threading.Event()

    def step(self, deliver: Deliver) -> list[Output]:
        self.stepping.set()
        self.release.wait()
        self.has_work = False
        return []

    def stats(self) -> None: ...

    def check_integrity(self) -> None: ...

    def abort_all(self) -> list[Output]:
        return []


class Touched:
    """Weights and caches of an engine, and whether they were read."""

    def __init__(self) -> None:
        self.touches = threading.Semaphore(0)

    def touch(self) -> None:
        self.touches.release()


class Running:
    def __init__(self) -> None:
        self.clock = Clock()
        self.engine = HangingEngine()
        self.ended = threading.Event()
        self.loop = EngineLoop(
            lambda: cast(Engine, self.engine),
            lambda outputs: None,
            self.ended.set,
            step_timeout_s=STEP_TIMEOUT_S,
            now=self.clock,
        )
        self.loop.start()
        self.loop.started.result()

    def begin_step(self) -> None:
        def work(engine: Any) -> list[Output]:
            engine.has_work = True
            return []

        self.loop.submit(work)
        self.engine.stepping.wait()

    def run_command(self) -> None:
        """Returns once the engine has no step before it any more."""
        ran = threading.Event()

        def command(engine: Engine) -> list[Output]:
            ran.set()
            return []

        self.loop.submit(command)
        ran.wait()


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.engine.release.set()
    made.loop.stop()
    made.ended.wait()


def test_a_step_that_lasts_too_long_is_a_fault_until_it_ends(running: Running) -> None:
    running.begin_step()
    running.clock.time += STEP_TIMEOUT_S - 1
    running.loop.check_health()
    running.clock.time += 2
    with pytest.raises(UnavailableError, match="a step has taken longer than 60 s"):
        running.loop.check_health()
    running.engine.release.set()
    running.run_command()
    running.loop.check_health()


def test_an_engine_without_work_may_be_idle_for_ever(running: Running) -> None:
    running.clock.time += 10 * STEP_TIMEOUT_S
    running.loop.check_health()


def test_stop_does_not_wait_for_a_step_that_hangs(running: Running) -> None:
    running.begin_step()
    running.clock.time += STEP_TIMEOUT_S + 1
    stopping = threading.Thread(target=running.loop.stop, daemon=True)
    stopping.start()
    stopping.join(30)
    assert not stopping.is_alive()
    assert not running.ended.is_set()


def test_stop_waits_for_a_step_that_has_time_left(running: Running) -> None:
    running.begin_step()
    threading.Timer(0.01, running.engine.release.set).start()
    running.loop.stop()
    assert running.ended.is_set()


def test_loading_a_model_may_take_longer_than_a_step() -> None:
    clock, loading, loaded = Clock(), threading.Event(), threading.Event()

    def build() -> Engine:
        loading.set()
        loaded.wait()
        return cast(Engine, HangingEngine())

    loop = EngineLoop(
        build, lambda outputs: None, lambda: None, step_timeout_s=STEP_TIMEOUT_S, now=clock
    )
    loop.start()
    loading.wait()
    clock.time += 10 * STEP_TIMEOUT_S
    loop.check_health()
    loaded.set()
    loop.started.result()
    loop.check_health()
    loop.stop()


@pytest.mark.parametrize(
    ("seconds_each", "expected"),
    [(0.0, ["add", "add", "add"]), (60.0, ["add", "step", "add", "step", "add", "step"])],
)
def test_running_streams_do_not_wait_for_many_slow_commands(
    seconds_each: float, expected: list[str]
) -> None:
    clock, ended = Clock(), threading.Event()
    order: list[str] = []

    class Stepping(HangingEngine):
        def __init__(self) -> None:
            super().__init__()
            self.has_work = True

        def step(self, deliver: Deliver) -> list[Output]:
            order.append("step")
            return []

    def add(engine: Engine) -> list[Output]:
        order.append("add")
        clock.time += seconds_each
        return []

    loop = EngineLoop(
        lambda: cast(Engine, Stepping()),
        lambda outputs: None,
        ended.set,
        step_timeout_s=STEP_TIMEOUT_S,
        now=clock,
    )
    for _ in range(3):
        loop.submit(add)
    loop.stop()
    loop.start()
    ended.wait()
    assert order == expected


def test_statistics_are_gathered_now_and_then_and_whenever_requests_come_or_end() -> None:
    clock = Clock()

    class Telling(HangingEngine):
        """Its statistics say how often it was asked for them."""

        def __init__(self) -> None:
            super().__init__()
            self.has_work = True
            self.num_told = 0

        def step(self, deliver: Deliver) -> list[Output]:
            return []

        def stats(self) -> Any:
            self.num_told += 1
            return self.num_told

    engine = Telling()
    loop = EngineLoop(
        lambda: cast(Engine, engine),
        lambda outputs: None,
        lambda: None,
        step_timeout_s=STEP_TIMEOUT_S,
        now=clock,
    )

    def told_after(change: Callable[[], None]) -> object:
        done = [threading.Event(), threading.Event()]

        def first(engine: Engine) -> list[Output]:
            change()
            done[0].set()
            return []

        def second(engine: Engine) -> list[Output]:
            done[1].set()
            return []

        # The second runs when the first is told of.
        for command in (first, second):
            loop.submit(command)
        done[1].wait()
        return loop.stats()

    loop.start()
    assert told_after(lambda: None) == 1
    clock.time += 0.9 * MAX_STATS_AGE_S
    assert told_after(lambda: None) == 1
    clock.time += 0.2 * MAX_STATS_AGE_S
    assert told_after(lambda: None) == 2
    assert told_after(lambda: setattr(engine, "population", (1, 1))) == 3
    assert told_after(lambda: None) == 3
    # Without work it tells of every command, of the second by now or soon.
    assert told_after(lambda: setattr(engine, "has_work", False)) in (4, 5)
    loop.stop()


def test_an_idle_engine_reads_its_weights_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend_metal.engine.loop.TOUCH_INTERVAL_S", 0.001)
    clock, ended, resident = Clock(), threading.Event(), Touched()
    engine: Any = HangingEngine()
    engine.resident, engine.has_work = resident, True
    engine.release.set()
    loop = EngineLoop(
        lambda: cast(Engine, engine),
        lambda outputs: None,
        ended.set,
        step_timeout_s=STEP_TIMEOUT_S,
        keep_resident_s=10.0,
        now=clock,
    )
    loop.start()
    for _ in range(3):
        resident.touches.acquire()
    clock.time += 11.0
    idle = threading.Event()

    def run_idle(engine: Engine) -> list[Output]:
        idle.set()
        return []

    # One touch may have begun before the time was over; none does after a command.
    loop.submit(run_idle)
    idle.wait()
    while resident.touches.acquire(blocking=False):
        pass
    loop.submit(run_idle)
    loop.stop()
    assert ended.is_set()
    assert not resident.touches.acquire(blocking=False)
