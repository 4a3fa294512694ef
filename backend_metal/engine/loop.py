"""The thread that owns MLX: commands in, outputs out, and a step whenever there is work."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf

from backend_metal.engine.engine import Engine, Output
from deployments.backend import BackendStats, UnavailableError

logger = logging.getLogger(__name__)

MAX_COMMANDS_S = 0.1
"""Seconds of commands after which a step has its turn. Most take microseconds, but each of many
streams that come from a lost host brings hundreds of tokens to be made text again."""

MAX_STATS_AGE_S = 0.02
"""Seconds for which steps that only bring tokens leave the statistics as they are: to gather them
takes a fifth of what the host does for a short step."""

TOUCH_INTERVAL_S = 1.0
"""A Mac gives up memory that was idle for about two."""

Command = Callable[[Engine], list[Output]]


class EngineLoop:
    """Builds an engine and steps it in a thread of its own.

    Commands are queued without waiting and run between two steps, so at most one step passes before
    a cancellation takes effect, or one for each ``MAX_COMMANDS_S`` of commands ahead of it.
    ``deliver`` and, once, ``ended`` are called in the engine's thread and must not block.

    A step that takes longer than ``step_timeout_s`` counts as hung, in a GPU's driver say: then
    ``check_health`` raises and ``stop`` leaves the thread behind, since nothing but the end of the
    process ends such a thread. What no step does, above all loading the model, may take any time.

    For ``keep_resident_s`` after a step an engine that has nothing to do reads of its weights and
    caches, so that a GPU keeps them.
    """

    def __init__(
        self,
        build: Callable[[], Engine],
        deliver: Callable[[list[Output]], None],
        ended: Callable[[], None],
        *,
        step_timeout_s: float,
        keep_resident_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.started: Future[Engine] = Future()
        """Holds the engine once it is built, for its constants; or why it could not be."""
        self._build = build
        self._deliver = deliver
        self._ended = ended
        self._step_timeout_s = step_timeout_s
        self._keep_resident_s = keep_resident_s
        self._resident_until = -inf
        self._now = now
        self._step_began: float | None = None
        """None between steps."""
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._stats: BackendStats | None = None
        self._stats_from = 0.0
        self._stats_population = (0, 0)
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, command: Command) -> None:
        self._commands.put(command)

    def stop(self) -> None:
        """End unfinished requests with ``abort`` and wait for the thread, unless it hangs.
        Idempotent."""
        self._commands.put(None)
        if self._thread.ident is not None:
            self._thread.join(max(self._step_time_left(), 0.0))
            if self._thread.is_alive():
                logger.error("the engine's thread hangs, and ends when the process does")

    def stats(self) -> BackendStats:
        """As of the end of the latest step, but for steps within ``MAX_STATS_AGE_S`` in which no
        sequence came, began or ended. Of an engine without work nothing is left out."""
        if self._stats is None:
            raise UnavailableError("the engine has not started")
        return self._stats

    def check_health(self) -> None:
        """Raises ``UnavailableError`` when the engine can't run another step, or hangs in one."""
        if self._failure is not None:
            raise UnavailableError(self._failure)
        if not self._thread.is_alive():
            raise UnavailableError("the engine is not running")
        if self._step_time_left() <= 0.0:
            raise UnavailableError(f"a step has taken longer than {self._step_timeout_s:g} s")

    def _step_time_left(self) -> float:
        """In seconds, of the step that runs, or would run next."""
        began = self._step_began
        return self._step_timeout_s - (0.0 if began is None else self._now() - began)

    def _run(self) -> None:
        if not self.started.set_running_or_notify_cancel():
            return
        try:
            engine = self._build()
        except Exception as error:
            logger.exception("the engine did not start")
            self._failure = f"the engine did not start: {error}"
            self.started.set_exception(error)
            return
        self._take_stats(engine)
        self.started.set_result(engine)
        try:
            while self._run_commands(engine):
                if engine.has_work:
                    self._step_began = self._now()
                    outputs = engine.step(partial(self._publish, engine))
                    self._step_began = None
                    self._resident_until = self._now() + self._keep_resident_s
                    self._publish(engine, outputs)
        except Exception as error:
            logger.exception("the engine stopped")
            self._failure = f"the engine stopped: {error!r}"
        finally:
            try:
                self._publish(engine, engine.abort_all())
            finally:
                self._ended()

    def _run_commands(self, engine: Engine) -> bool:
        """Run what is queued, waiting for a command when there is no other work; False: the last
        one has come."""
        if not engine.has_work:
            engine.check_integrity()
        spent_s = 0.0
        try:
            while spent_s < MAX_COMMANDS_S:
                command = self._next_command(engine)
                if command is None:
                    return False
                began = self._now()
                self._publish(engine, command(engine))
                spent_s += self._now() - began
        except queue.Empty:
            pass
        return True

    def _next_command(self, engine: Engine) -> Command | None:
        """Raises ``queue.Empty`` if there is none and other work is there."""
        while engine.resident and not engine.has_work and self._now() < self._resident_until:
            with suppress(queue.Empty):
                return self._commands.get(timeout=TOUCH_INTERVAL_S)
            engine.resident.touch()
        return self._commands.get(block=not engine.has_work)

    def _publish(self, engine: Engine, outputs: list[Output]) -> None:
        if not engine.is_healthy:
            self._failure = "several steps failed in a row"
        self._take_stats(engine)
        if outputs:
            self._deliver(outputs)

    def _take_stats(self, engine: Engine) -> None:
        now, population = self._now(), engine.population
        if (
            self._stats is None
            or population != self._stats_population
            or now >= self._stats_from + MAX_STATS_AGE_S
            or not engine.has_work
        ):
            self._stats = engine.stats()
            self._stats_from, self._stats_population = now, population
