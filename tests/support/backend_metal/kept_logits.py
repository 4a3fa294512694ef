"""The logits that a request gets from an engine, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal import LLM, SamplingParams
from backend_metal.engine.runner import ModelForward
from backend_metal.engine.schedule.step import Step

Rows = dict[int, list[npt.NDArray[np.float32]]]
"""By how many tokens are before them: logits, once for each time that they were computed."""


@contextmanager
def kept_logits(llm: LLM, request_id: str) -> Iterator[Rows]:
    """What ``request_id`` gets within the block, of which the caller has the rest."""
    runner: Any = llm.engine._pipeline.runner
    found: list[tuple[int, mx.array, int]] = []
    forward = runner.forward

    def keeping(step: Step, drawn: mx.array | None) -> ModelForward:
        flight: ModelForward = forward(step, drawn)
        ends = [item for item in step.scheduled if item.has_logits]
        for row, item in enumerate(ends):
            if item.sequence.request_id == request_id:
                found.append((item.stop, flight._logits, row))
        return flight

    runner.forward = keeping
    rows: Rows = {}
    try:
        yield rows
    finally:
        runner.forward = forward
    for stop, logits, row in found:
        rows.setdefault(stop, []).append(np.array(logits[row].astype(mx.float32)))


def answer(
    llm: LLM, prompts: list[list[int]], lengths: list[int], index: int
) -> tuple[list[int], Rows]:
    sampling = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths
    ]
    with kept_logits(llm, str(index)) as rows:
        completions = llm.generate(prompts, sampling, show_progress=False)
    return completions[index].token_ids, rows
