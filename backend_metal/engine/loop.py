"""The thread that owns MLX: commands in, outputs out, and a step whenever there is work."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from backend_metal.engine.engine import Engine, Output
from deployments.backend import BackendStats, UnavailableError

logger = logging.getLogger(__name__)

Command = Callable[[Engine], list[Output]]


class EngineLoop:
    """Builds an engine and steps it in a thread of its own.

    Commands are queued without waiting and run between two steps, so at most one step passes before
    a cancellation takes effect. ``deliver`` and, once, ``ended`` are called in the engine's thread
    and must not block.
    """

    def __init__(
        self,
        build: Callable[[], Engine],
        deliver: Callable[[list[Output]], None],
        ended: Callable[[], None],
    ) -> None:
        self.started: Future[Engine] = Future()
        """Holds the engine once it is built, for its constants; or why it could not be."""
        self._build = build
        self._deliver = deliver
        self._ended = ended
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._stats: BackendStats | None = None
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, command: Command) -> None:
        self._commands.put(command)

    def stop(self) -> None:
        """End unfinished requests with ``abort`` and wait for the thread. Idempotent."""
        self._commands.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def stats(self) -> BackendStats:
        """As of the end of the latest step."""
        if self._stats is None:
            raise UnavailableError("the engine has not started")
        return self._stats

    def check_health(self) -> None:
        """Raises ``UnavailableError`` when the engine can't run another step."""
        if self._failure is not None:
            raise UnavailableError(self._failure)
        if not self._thread.is_alive():
            raise UnavailableError("the engine is not running")

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
        self._stats = engine.stats()
        self.started.set_result(engine)
        try:
            while self._run_commands(engine):
                if engine.has_work:
                    self._publish(engine, engine.step())
        except Exception as error:
            logger.exception("the engine stopped")
            self._failure = f"the engine stopped: {error!r}"
        finally:
            try:
                self._publish(engine, engine.abort_all())
            finally:
                self._ended()

    def _run_commands(self, engine: Engine) -> bool:
        """Run what is queued, waiting for a command when there is no other work."""
        if not engine.has_work:
            engine.check_integrity()
        try:
            while True:
                command = self._commands.get(block=not engine.has_work)
                if command is None:
                    return False
                self._publish(engine, command(engine))
        except queue.Empty:
            return True

    def _publish(self, engine: Engine, outputs: list[Output]) -> None:
        if not engine.is_healthy:
            self._failure = "several steps failed in a row"
        self._stats = engine.stats()
        if outputs:
            self._deliver(outputs)
