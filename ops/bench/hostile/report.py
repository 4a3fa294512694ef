"""What ordinary clients noticed of each attack, as a table, and what they were promised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ops.bench.hostile.agent import APIS
from ops.bench.hostile.ordinary import Met
from ops.bench.timing import markdown_table

LEAST_RATIO = 0.5
READY_WITHIN_S = 0.25
READY_QUANTILE = 0.999
MIB = 2**20

COLUMNS = (
    "attack",
    "way in",
    "tokens/s",
    "of those beside a neighbour",
    *(f"by {api.name}" for api in APIS),
    "p99 between tokens, ms",
    "`/ready` p99.9, ms",
    "worst, ms",
    "streams",
    "failed",
    "gateway, MiB",
    "engine, MiB",
    "calm again, s",
)


@dataclass(frozen=True)
class Row:
    """``before`` and ``after``: resident bytes by name of the process, without one that was gone;
    ``calm_s``: until the engine had nothing to do, infinite for never."""

    attack: str
    way: str
    met: Met
    beside_a_neighbour: Met
    before: Mapping[str, int]
    after: Mapping[str, int]
    calm_s: float

    @property
    def ratio(self) -> float:
        return self.met.tokens_per_second / self.beside_a_neighbour.tokens_per_second

    def ratio_of(self, api: str) -> float:
        return self.met.tokens[api] / self.beside_a_neighbour.tokens[api]

    def broken(self) -> list[str]:
        """The promises that did not hold."""
        broken = []
        broken += [
            f"streams by {api.name} had {ratio:.0%} of their speed beside a neighbour"
            for api in APIS
            if (ratio := self.ratio_of(api.name)) < LEAST_RATIO
        ]
        if (ready_s := self.met.ready_within(READY_QUANTILE)) > READY_WITHIN_S:
            took = "failed" if math.isinf(ready_s) else f"took {_ms(ready_s)} ms"
            broken.append(f"`/ready` {took}")
        if self.met.num_failed:
            broken.append(f"{self.met.num_failed} streams of others failed")
        if math.isinf(self.calm_s):
            broken.append("the engine was never idle again")
        return [f"{self.attack}, {self.way}: {what}" for what in broken]


def report(rows: Sequence[Row]) -> str:
    table = markdown_table(COLUMNS, [_cells(row) for row in rows])
    broken = [line for row in rows for line in row.broken()]
    verdict = "\n".join(["Broken:", *(f"- {line}" for line in broken)]) if broken else "All held."
    return f"{table}\n\n{verdict}\n"


def _cells(row: Row) -> tuple[str, ...]:
    met = row.met
    return (
        row.attack,
        row.way,
        f"{met.tokens_per_second:.0f}",
        f"{row.ratio:.2f}",
        *(f"{row.ratio_of(api.name):.2f}" for api in APIS),
        _ms(met.gap(0.99)),
        _ms(met.ready_within(READY_QUANTILE)),
        _ms(met.ready_within(1.0)),
        str(len(met.outcomes)),
        str(met.num_failed),
        _memory(row, "gateway"),
        _memory(row, "engine"),
        _number(row.calm_s, 1),
    )


def _memory(row: Row, name: str) -> str:
    sizes = (f"{one[name] / MIB:.0f}" if name in one else "gone" for one in (row.before, row.after))
    return " to ".join(sizes)


def _ms(seconds: float) -> str:
    return _number(1000 * seconds, 0)


def _number(value: float, digits: int) -> str:
    return "-" if math.isinf(value) else f"{value:.{digits}f}"
