"""What an overloaded server did, as tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ops.bench.overload.client import Outcome
from ops.bench.overload.servers import Sample
from ops.bench.timing import markdown_table, quantile_of

LATE_S = 0.05
MIB = 2**20


@dataclass(frozen=True)
class Phase:
    """``outcomes`` of the requests that arrived in ``arrivals_s`` seconds."""

    name: str
    outcomes: Sequence[Outcome]
    arrivals_s: float

    @property
    def served(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.whole]

    @property
    def refused(self) -> list[Outcome]:
        """Those that were told when to come back."""
        return [one for one in self.outcomes if one.status == 429 and one.retry_after.isdigit()]

    @property
    def served_rate(self) -> float:
        """A second, until the last of them was: a queue is emptied after the last arrival."""
        if not self.served:
            return 0.0
        start, end = min(o.due for o in self.outcomes), max(o.last for o in self.served)
        return len(self.served) / (end - start)

    @property
    def num_failed(self) -> int:
        return len(self.outcomes) - len(self.served) - len(self.refused)

    @property
    def num_late(self) -> int:
        """Requests that the client itself sent too late."""
        return sum(one.sent - one.due > LATE_S for one in self.outcomes)

    def time_per_output_token(self, quantile: float) -> float:
        return quantile_of([one.time_per_output_token for one in self.served], quantile)

    def time_to_first_token(self, quantile: float) -> float:
        return quantile_of([one.time_to_first_token for one in self.served], quantile)


def report(phases: Sequence[Phase], samples: Sequence[Sample], drained_s: float) -> str:
    """``phases`` begin and end with requests alone: what others are so many times as long as."""
    rows = [
        ("requests a second", *(f"{len(p.outcomes) / p.arrivals_s:.1f}" for p in phases)),
        ("served a second", *(f"{p.served_rate:.1f}" for p in phases)),
        ("refused a second, with 429", *(f"{len(p.refused) / p.arrivals_s:.1f}" for p in phases)),
        ("other failures", *(f"{p.num_failed}" for p in phases)),
        ("Retry-After, s", *(_range([int(o.retry_after) for o in p.refused]) for p in phases)),
    ]
    for quantile in (0.5, 0.9, 0.99):
        times = [phase.time_per_output_token(quantile) for phase in phases]
        alone = statistics.mean((times[0], times[-1]))
        cells = (f"{1000 * one:.1f} ({one / alone:.2f})" for one in times)
        rows.append((f"TPOT p{100 * quantile:.0f}, ms (times alone)", *cells))
    for quantile in (0.5, 0.99):
        cells = (f"{1000 * p.time_to_first_token(quantile):.0f}" for p in phases)
        rows.append((f"TTFT p{100 * quantile:.0f}, ms", *cells))
    rows.append(("sent late by the client", *(f"{p.num_late}" for p in phases)))
    outcomes = markdown_table(("", *(phase.name for phase in phases)), rows)
    return f"{outcomes}\n\n{_resources(samples)}\n\n{_recovery(phases[-1], drained_s)}\n"


def _resources(samples: Sequence[Sample]) -> str:
    """The first, the second and the last."""
    shown = [*samples[:2], samples[-1]] if len(samples) > 2 else samples
    rows = [
        ("engine's process, MiB", *(f"{s.resident_bytes['engine'] / MIB:.0f}" for s in shown)),
        ("gateway's process, MiB", *(f"{s.resident_bytes['gateway'] / MIB:.0f}" for s in shown)),
        (
            "`pomona_memory_active_bytes`, MiB",
            *(f"{s.metrics['pomona_memory_active_bytes'] / MIB:.0f}" for s in shown),
        ),
        ("engine's open files", *(f"{s.open_files['engine']}" for s in shown)),
        ("gateway's open files", *(f"{s.open_files['gateway']}" for s in shown)),
        ("requests running", *(f"{s.metrics['pomona_requests_running']:.0f}" for s in shown)),
        ("requests waiting", *(f"{s.metrics['pomona_requests_waiting']:.0f}" for s in shown)),
    ]
    return markdown_table(("under overload, after", *(f"{s.at:.0f} s" for s in shown)), rows)


def _recovery(last: Phase, drained_s: float) -> str:
    first = 1000 * last.outcomes[0].time_to_first_token
    return (
        f"All that was accepted is answered {drained_s:.1f} s after the last arrival; the next "
        f"request has its first token after {first:.0f} ms."
    )


def _range(values: Sequence[int]) -> str:
    return f"{min(values)} to {max(values)}" if values else ""
