"""Whether a server's own figures are those that its client measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ops.bench.serve.metrics import (
    GENERATION_TOKENS,
    HISTOGRAMS,
    PROMPT_TOKENS,
    REQUESTS,
    Counts,
)
from ops.bench.serve.result import Result
from ops.bench.timing import markdown_table

TIME_TO_FIRST_TOKEN, INTER_TOKEN_LATENCY, LATENCY = HISTOGRAMS
STAGES = ("engine", "gateway")
"""The last one that there is is what a client asks."""
CLOCK_S = 0.001
"""What a server may measure beyond its client: times are taken a little beside what they are of."""
SLACK_S = 0.05
"""From sending a request to its arrival, and from making a token to reading it, together."""


@dataclass(frozen=True)
class Figure:
    """As the client measured it and as the server did."""

    name: str
    client: float
    server: float
    agrees: bool
    unit: str = ""

    def row(self) -> tuple[str, ...]:
        both = (
            f"{1e3 * value:.2f} ms" if self.unit == "s" else f"{value:,.0f}"
            for value in (self.client, self.server)
        )
        return (self.name, *both, "yes" if self.agrees else "**no**")


def figures(result: Result, tolerance: float) -> list[Figure]:
    """``tolerance``: the part of a mean time that may differ. Empty without the server's counts.

    Where answers failed nobody knows what the server made for them: its counts may be higher, and
    times are not compared.
    """
    if result.server_counts is None:
        return []
    whole = not result.num_failed
    found = list(_totals(result, result.server_counts, whole))
    return found + list(_times(result, result.server_counts, tolerance)) if whole else found


def agreement_table(compared: Sequence[Figure]) -> str:
    columns = ("", "client", "server", "agree")
    return markdown_table(columns, [figure.row() for figure in compared]) + "\n"


def _totals(result: Result, counts: Counts, whole: bool) -> Iterator[Figure]:
    for name, client, sample in (
        ("requests", len(result.good), REQUESTS),
        ("input tokens", result.input_tokens, PROMPT_TOKENS),
        ("output tokens", result.output_tokens, GENERATION_TOKENS),
    ):
        server = counts.get((sample, ""), 0.0)
        yield Figure(name, client, server, client == server if whole else client <= server)


def _times(result: Result, counts: Counts, tolerance: float) -> Iterator[Figure]:
    """Means: a server tells sums, and only buckets beside them."""
    for name, client, sample in (
        ("mean TTFT", result.time_to_first_token.mean, TIME_TO_FIRST_TOKEN),
        ("mean E2EL", result.latency.mean, LATENCY),
    ):
        means = {stage: _mean(counts, sample, stage) for stage in STAGES}
        known = {stage: mean for stage, mean in means.items() if mean is not None}
        for stage, server in known.items():
            # The server's begins later and ends earlier; an engine's is a part of its gateway's.
            most = tolerance * client
            agrees = -max(CLOCK_S, most) <= client - server
            if stage == max(known, key=STAGES.index):
                agrees &= client - server <= max(SLACK_S, most)
            yield Figure(f"{name}, {stage}", client, server, agrees, "s")
    gaps = sum(one.num_tokens - 1 for one in result.good if one.times)
    own = _mean(counts, INTER_TOKEN_LATENCY, "engine")
    if own is not None and gaps:
        client = sum(one.times[-1] - one.times[0] for one in result.good if one.times) / gaps
        agrees = abs(client - own) <= max(CLOCK_S, tolerance * client)
        yield Figure("mean ITL, engine", client, own, agrees, "s")


def _mean(counts: Counts, sample: str, stage: str) -> float | None:
    count = counts.get((f"{sample}_count", stage), 0.0)
    return counts[f"{sample}_sum", stage] / count if count else None
