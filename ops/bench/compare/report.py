"""The results as Markdown, and as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ops.bench.compare.chart import Panel, Point, draw
from ops.bench.compare.model import Precision, Weights
from ops.bench.compare.results import Figure, Results, Trial
from ops.bench.machine import Machine
from ops.bench.timing import markdown_table

MIB = 2**20
THROUGHPUT = "output tokens a second"
LATENCY = "ms for each token of a request, the wait for the first included"


def rate(trial: Trial) -> float:
    return trial.output_tokens_per_second


def decode_rate(trial: Trial) -> float:
    """Of one stream, after its first token."""
    return 1 / trial.time_per_output_token


def chart(results: Results, output_tokens: int) -> str:
    def points(precision: Precision, peer: str) -> Iterator[Point]:
        for at_once in results.loads:
            throughput = results.median(precision, peer, at_once, rate)
            latency = results.median(precision, peer, at_once, lambda one: one.latency)
            if throughput is not None and latency is not None:
                yield Point(throughput, 1000 * latency / output_tokens, str(at_once))

    panels: dict[str, Panel] = {
        precision: {peer: list(points(precision, peer)) for peer in results.peers(precision)}
        for precision in results.precisions
    }
    return draw(panels, f"{THROUGHPUT}; beside each point, how many requests at once", LATENCY)


def report(
    results: Results,
    machine: Machine,
    weights: Sequence[Weights],
    versions: Mapping[str, str],
    ours: str,
) -> str:
    """``versions``: of each peer, or why there is none."""
    parts = [
        machine.report(),
        "\n".join(f"- {peer}: {version}" for peer, version in versions.items()),
        _rates(results),
        *([_leads(results, ours)] if len({one.peer for one in results.trials}) > 1 else []),
        _times(results),
        _alone(results, machine, {one.precision: one for one in weights}),
        *_remarks(results),
    ]
    return "\n\n".join(parts) + "\n"


def _rates(results: Results) -> str:
    rows = []
    for precision, peer in _servers(results):
        cells = []
        for at_once in results.loads:
            found = sorted(results.by_round(precision, peer, at_once, rate).values())
            middle = results.median(precision, peer, at_once, rate)
            cells.append(_cell(middle, f" ({found[0]:.1f} to {found[-1]:.1f})" if found else ""))
        rows.append((f"{precision}, {peer}", *cells))
    columns = [f"{THROUGHPUT}, median of rounds (range)", *_at_once(results)]
    return markdown_table(columns, rows)


def _leads(results: Results, ours: str) -> str:
    rows = []
    for precision, peer in _servers(results):
        if peer != ours:
            leads = [results.lead(precision, ours, peer, one, rate) for one in results.loads]
            alone = results.lead(precision, ours, peer, min(results.loads), decode_rate)
            cells = (_cell(lead, digits=2) for lead in (*leads, alone))
            rows.append((f"{precision}, {peer}", *cells))
    columns = [f"{ours} is faster by", *_at_once(results), f"decode at {min(results.loads)}"]
    return markdown_table(columns, rows)


def _times(results: Results) -> str:
    figures: tuple[Figure, ...] = (
        lambda trial: 1000 * trial.time_to_first_token,
        lambda trial: 1000 * trial.time_per_output_token,
    )
    rows = []
    for precision, peer in _servers(results):
        cells = (
            " / ".join(_cell(results.median(precision, peer, one, figure)) for figure in figures)
            for one in results.loads
        )
        rows.append((f"{precision}, {peer}", *cells))
    return markdown_table(["TTFT / TPOT, ms, p50", *_at_once(results)], rows)


def _alone(results: Results, machine: Machine, weights: Mapping[Precision, Weights]) -> str:
    """One stream reads all weights for each token."""
    rows = []
    for precision, peer in _servers(results):
        decode = results.median(precision, peer, min(results.loads), decode_rate)
        starts = [one for one in results.starts if (one.peer, one.precision) == (peer, precision)]
        size = weights[precision].mlx_bytes
        share = None
        if decode is not None and min(results.loads) == 1:
            share = 100 * decode * size / machine.read_bytes_per_second
        rows.append(
            (
                f"{precision}, {peer}",
                _cell(decode),
                _cell(share, "%", digits=0),
                f"{size / MIB:.0f}",
                f"{min(one.memory_bytes for one in starts) / MIB:.0f}",
                f"{min(one.seconds for one in starts):.1f}",
            )
        )
    columns = (
        f"at {min(results.loads)}",
        "decode, tok/s",
        "weights' bytes, of the read bandwidth",
        "weights' file, MiB",
        "memory of the process, MiB",
        "start, s",
    )
    return markdown_table(columns, rows)


def _remarks(results: Results) -> Iterator[str]:
    for precision in results.precisions:
        alike = results.said_alike(precision)
        reference = next(iter(alike))
        told = ", ".join(f"{peer} {share:.0%}" for peer, share in alike.items())
        yield f"{precision}: greedy answers that are {reference}'s to the last letter: {told}."
    failed = sum(trial.failed for trial in results.trials)
    yield f"Requests that were not answered as they asked: {failed}."
    for one in results.failures:
        last = one.why.strip().splitlines()[-1]
        yield f"{one.peer}, {one.precision}, round {one.round + 1}: {last}"


def _servers(results: Results) -> list[tuple[Precision, str]]:
    return [(one, peer) for one in results.precisions for peer in results.peers(one)]


def _at_once(results: Results) -> list[str]:
    return [f"{one} at once" for one in results.loads]


def _cell(value: float | None, unit: str = "", digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"
