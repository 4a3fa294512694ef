"""What a load took, in the figures that everybody reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from ops.bench.serve.answer import Answer
from ops.bench.serve.faults import difference
from ops.bench.serve.load import Load
from ops.bench.serve.metrics import Counts
from ops.bench.serve.target import Target

PERCENTILES = (90, 99)


@dataclass(frozen=True)
class Spread:
    """Of times in seconds; NaN where there are none."""

    mean: float
    median: float
    std: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        if not values:
            return cls(*[float("nan")] * 5)
        p90, p99 = np.percentile(values, PERCENTILES)
        return cls(
            float(np.mean(values)),
            float(np.median(values)),
            float(np.std(values)),
            float(p90),
            float(p99),
        )


@dataclass(frozen=True)
class Result:
    """Failed answers are counted, and in none of the times."""

    target: Target
    load: Load
    answers: tuple[Answer, ...]
    """In the order in which they ended."""
    repeats: tuple[Answer, ...]
    """Of those that were asked again, which are not measured."""
    start: float
    client_cpu_s: float
    """Of this process, which has to be little beside the server's."""
    server_counts: Counts | None = None
    """What the server has counted meanwhile; None: it has no metrics that are known."""

    @cached_property
    def good(self) -> list[Answer]:
        return [one for one in self.answers if one.is_good]

    @cached_property
    def faults(self) -> list[str]:
        """Of all answers, and what was answered differently when it was asked again."""
        found = [(one, what) for one in (*self.answers, *self.repeats) for what in one.faults]
        first = {(one.number, one.turn): one for one in self.good}
        for again in self.repeats:
            before = first.get((again.number, again.turn))
            if before and again.is_good and (what := difference(before, again)):
                found.append((again, what))
        return [f"conversation {one.number}, turn {one.turn}: {what}" for one, what in found]

    @property
    def num_refused(self) -> int:
        return sum(one.is_refused for one in self.answers)

    @property
    def num_failed(self) -> int:
        """Those that were refused among them."""
        return len(self.answers) - len(self.good)

    @cached_property
    def seconds(self) -> float:
        """To the end of the last answer."""
        return max((one.ended for one in self.answers), default=self.start) - self.start

    @property
    def input_tokens(self) -> int:
        return sum(one.usage.prompt_tokens for one in self.good if one.usage)

    @property
    def cached_tokens(self) -> int:
        """Of the input's, as the server says."""
        return sum(one.usage.cached_tokens for one in self.good if one.usage)

    @property
    def output_tokens(self) -> int:
        return sum(one.num_tokens for one in self.good)

    @property
    def requests_per_second(self) -> float:
        return len(self.good) / self.seconds

    @property
    def output_tokens_per_second(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def total_tokens_per_second(self) -> float:
        return (self.input_tokens + self.output_tokens) / self.seconds

    @cached_property
    def time_to_first_token(self) -> Spread:
        return Spread.of([one.time_to_first_token for one in self.good if one.times])

    @cached_property
    def time_per_output_token(self) -> Spread:
        """Excluding the first; each answer counts once."""
        return Spread.of([one.time_per_output_token for one in self.good if one.num_tokens > 1])

    @cached_property
    def inter_token_latency(self) -> Spread:
        """Each gap between two events counts once."""
        return Spread.of([gap for one in self.good for gap in one.inter_token_latencies])

    @cached_property
    def latency(self) -> Spread:
        """From the request to the last token."""
        return Spread.of([one.latency for one in self.good if one.times])

    @cached_property
    def lateness(self) -> Spread:
        """From when a request was due to when it was sent: what the client itself is late by."""
        return Spread.of([one.sent - one.due for one in self.answers])

    @property
    def client_share(self) -> float:
        """Of one core, what the client took."""
        return self.client_cpu_s / self.seconds
