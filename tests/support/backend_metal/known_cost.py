"""A pace that has seen what steps cost."""

from __future__ import annotations

from backend_metal.engine.schedule.decode_times import ENOUGH
from backend_metal.engine.schedule.step_pace import StepPace


def knowing(base: float | None) -> StepPace:
    """That a step's base takes as long as so many decodes; None: it has seen no step."""
    pace = StepPace()
    for num_decodes in range(1, 33) if base is not None else ():
        for _ in range(ENOUGH):
            pace.decode_times.observe(num_decodes, 0.001 * ((base or 0.0) + num_decodes))
    return pace
