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


def quantile_of(values: Sequence[float], quantile: float) -> float:
    return sorted(values)[int(quantile * (len(values) - 1))]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""
    rules = ["---"] + ["---:"] * (len(columns) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rules, *rows))
