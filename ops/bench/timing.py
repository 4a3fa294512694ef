"""Timing, quantiles and tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median_seconds(run: Callable[[], object], *, budget: float, most: int = 15) -> float:
    """Median of at least 3 runs after one to warm up, and of up to ``most`` within ``budget`` s."""
    run()
    taken: list[float] = []
    while len(taken) < 3 or (len(taken) < most and sum(taken) < budget):
        taken.append(seconds(run))
    return statistics.median(taken)


def medians_by_turns(
    runs: Sequence[Callable[[], object]], *, budget: float, most: int = 24
) -> list[float]:
    """One for each of the runs, which take turns; likewise, within ``budget`` s for each."""
    for run in runs:
        run()
    taken: list[list[float]] = [[] for _ in runs]
    while len(taken[0]) < 3 or (len(taken[0]) < most and max(map(sum, taken)) < budget):
        for run, times in zip(runs, taken, strict=True):
            times.append(seconds(run))
    return [statistics.median(times) for times in taken]


def quantile_of(values: Sequence[float], quantile: float) -> float:
    return sorted(values)[int(quantile * (len(values) - 1))]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""
    rules = ["---"] + ["---:"] * (len(columns) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rules, *rows))
