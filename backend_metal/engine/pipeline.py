"""Two steps at a time: while one runs on the device, the next is scheduled, built and submitted.

The tokens that the first draws stay on the device and feed the second. Before the second draws any
itself, those of the first are read, and what follows from them is done: sequences end, guides
advance, masks are filled. The device computes the second's model meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from backend_metal.engine.schedule.scheduler import Scheduler
from backend_metal.engine.schedule.step import Draws, Forward, Runner, Step, TokenDraw
from backend_metal.engine.step_clock import StepClock


class StepFailedError(Exception):
    """``__cause__`` says why. Whatever was submitted behind the step is void."""

    def __init__(self, step: Step) -> None:
        self.step = step
        super().__init__(f"a step of {step.num_tokens} tokens failed")


@dataclass
class Flight:
    """A step on its way."""

    step: Step
    began: float
    """When it was scheduled, by ``time.perf_counter``."""
    forward: Forward | Exception
    """Or why there is none."""
    draws: Draws | None = None


class Pipeline:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: StepClock,
        on_begin: Callable[[Step, float], None],
    ) -> None:
        """``on_begin``: is told of each step that is scheduled, and when."""
        self.runner = runner
        self.clock = clock
        self._scheduler = scheduler
        self._on_begin = on_begin
        self._running: Flight | None = None
        """Submitted whole."""
        self._next: Flight | None = None

    @property
    def step(self) -> Step | None:
        """The step that is under way, if anybody waits for what comes of it."""
        flight = self._running
        return flight.step if flight is not None and flight.step.is_wanted else None

    @property
    def holds_up(self) -> bool:
        """Whether ``draw`` will take as long as the step that it submits, or longer."""
        if self._next is None or isinstance(self._next.forward, Exception):
            return False
        return self.runner.holds_up or self._next.forward.holds_up

    def fill(self) -> None:
        """Have a step under way. Raises ``StepFailedError``."""
        if self.step is None:
            self._next = self._begin(None)
            self.draw()

    def land(self) -> tuple[Flight, list[TokenDraw]]:
        """The step under way, and what it drew, once it is done; with the model of the next one
        submitted meanwhile. ``draw`` is next. Raises ``StepFailedError``."""
        flight = self._running
        assert flight is not None, "nothing is under way"
        assert flight.draws is not None, "a step under way has not drawn"
        if self._scheduler.has_work:
            self._next = self._begin(flight.draws.token_ids)
            # What the host did meanwhile made it seem longer.
            flight.step.is_typical &= self._next.step.is_typical
        try:
            return flight, flight.draws.wait()
        except Exception as error:
            self._next = None
            raise StepFailedError(flight.step) from error
        finally:
            self._running = None
            self.clock.lap("wait")

    def draw(self) -> None:
        """Submit the rest of the next step, which is the one under way from now on. Raises
        ``StepFailedError``."""
        flight, self._next = self._next, None
        if flight is None:
            return
        if isinstance(flight.forward, Exception):
            raise StepFailedError(flight.step) from flight.forward
        self._scheduler.draw(flight.step)
        self.clock.lap("schedule")
        try:
            flight.draws = flight.forward.sample()
        except Exception as error:
            raise StepFailedError(flight.step) from error
        self._running = flight

    def _begin(self, drawn: mx.array | None) -> Flight:
        began = time.perf_counter()
        step = self._scheduler.schedule()
        self._on_begin(step, began)
        self.clock.lap("schedule")
        try:
            return Flight(step, began, self.runner.forward(step, drawn))
        except Exception as error:  # noqa: BLE001
            # ``draw`` raises it: the step before comes first.
            return Flight(step, began, error)
