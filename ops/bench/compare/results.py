"""What was measured, and what it comes to over all rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from ops.bench.compare.model import Precision


@dataclass(frozen=True)
class Start:
    """A fresh server, before any load."""

    peer: str
    precision: Precision
    round: int
    seconds: float
    """Until it was ready."""
    memory_bytes: int
    said: tuple[str, ...]
    """Its greedy answers to what all servers are asked."""


@dataclass(frozen=True)
class Trial:
    """One load on a server; times in seconds, medians of its requests."""

    peer: str
    precision: Precision
    round: int
    at_once: int
    output_tokens_per_second: float
    time_to_first_token: float
    time_per_output_token: float
    latency: float
    """To a request's last token."""
    failed: int
    """Requests that were not answered as they asked."""


@dataclass(frozen=True)
class Failure:
    """A server that did not start, or broke, and its last words."""

    peer: str
    precision: Precision
    round: int
    why: str


Figure = Callable[[Trial], float]


@dataclass
class Results:
    """In the order in which they came."""

    starts: list[Start] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def precisions(self) -> list[Precision]:
        return list(dict.fromkeys(trial.precision for trial in self.trials))

    @property
    def loads(self) -> list[int]:
        return sorted({trial.at_once for trial in self.trials})

    def peers(self, precision: Precision) -> list[str]:
        """As in the first round."""
        found = (trial.peer for trial in self.trials if trial.precision == precision)
        return list(dict.fromkeys(found))

    def by_round(
        self, precision: Precision, peer: str, at_once: int, figure: Figure
    ) -> dict[int, float]:
        load = precision, peer, at_once
        return {
            one.round: figure(one)
            for one in self.trials
            if (one.precision, one.peer, one.at_once) == load
        }

    def median(self, precision: Precision, peer: str, at_once: int, figure: Figure) -> float | None:
        """None: it was not measured."""
        found = self.by_round(precision, peer, at_once, figure).values()
        return statistics.median(found) if found else None

    def lead(
        self, precision: Precision, ours: str, theirs: str, at_once: int, figure: Figure
    ) -> float | None:
        """``figure`` of ours over theirs: the median of rounds that have both, if there are any."""
        one, other = (self.by_round(precision, peer, at_once, figure) for peer in (ours, theirs))
        ratios = [one[number] / other[number] for number in one.keys() & other.keys()]
        return statistics.median(ratios) if ratios else None

    def said_alike(self, precision: Precision) -> dict[str, float]:
        """By peer, of its answers in ``precision``, the part that is the first peer's, too: whole
        answers, over all rounds."""
        starts = [one for one in self.starts if one.precision == precision]
        if not starts:
            return {}
        reference = starts[0].said
        alike: dict[str, list[bool]] = {}
        for one in starts:
            same = [mine == theirs for mine, theirs in zip(one.said, reference, strict=True)]
            alike.setdefault(one.peer, []).extend(same)
        return {peer: statistics.mean(same) for peer, same in alike.items()}
