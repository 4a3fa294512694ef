"""The order of steps that needs no pipeline: an oracle for the one that the engine has."""

from __future__ import annotations

from backend_metal.engine.engine import Engine
from backend_metal.engine.pipeline import Flight, Pipeline
from backend_metal.engine.schedule.step import TokenDraw


class OneStepAtATime(Pipeline):
    """No step is scheduled before all that the one before it drew is known."""

    def land(self) -> tuple[Flight, list[TokenDraw]]:
        flight, self._running = self._running, None
        assert flight is not None
        assert flight.draws is not None
        return flight, flight.draws.wait()


def unpipelined(engine: Engine) -> Engine:
    """The same engine, which must be idle."""
    assert not engine.has_work
    engine._pipeline = OneStepAtATime(
        engine.scheduler,
        engine._pipeline.runner,
        engine._pipeline.clock,
        engine._record_first_runs,
    )
    return engine
