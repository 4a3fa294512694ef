"""A result as text, in the form of vLLM's ``bench serve``; as Markdown; and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ops.bench.serve.agreement import Figure, agreement_table
from ops.bench.serve.result import Result, Spread
from ops.bench.timing import markdown_table

WIDTH = 50
HEADINGS = {
    "TTFT": "Time to First Token",
    "TPOT": "Time per Output Token (excl. 1st token)",
    "ITL": "Inter-token Latency",
    "E2EL": "End-to-end Latency",
}
MOST_FAULTS = 10


def spreads(result: Result) -> dict[str, Spread]:
    """By the name that everybody uses."""
    return {
        "TTFT": result.time_to_first_token,
        "TPOT": result.time_per_output_token,
        "ITL": result.inter_token_latency,
        "E2EL": result.latency,
    }


def as_text(result: Result) -> str:
    load = result.load
    lines = [
        f"{' Serving Benchmark Result ':=^{WIDTH}}",
        _line("Successful requests:", len(result.good)),
        _line("Failed requests:", result.num_failed),
    ]
    if load.concurrency is not None:
        lines.append(_line("Maximum request concurrency:", load.concurrency))
    if not math.isinf(load.rate):
        lines.append(_line("Request rate configured (RPS):", load.rate))
    lines += [
        _line("Benchmark duration (s):", result.seconds),
        _line("Total input tokens:", result.input_tokens),
        _line("Total generated tokens:", result.output_tokens),
        _line("Request throughput (req/s):", result.requests_per_second),
        _line("Output token throughput (tok/s):", result.output_tokens_per_second),
        _line("Total token throughput (tok/s):", result.total_tokens_per_second),
    ]
    for name, spread in spreads(result).items():
        lines += [
            f"{HEADINGS[name]:-^{WIDTH}}",
            _line(f"Mean {name} (ms):", 1e3 * spread.mean),
            _line(f"Median {name} (ms):", 1e3 * spread.median),
            _line(f"P90 {name} (ms):", 1e3 * spread.p90),
            _line(f"P99 {name} (ms):", 1e3 * spread.p99),
        ]
    return "\n".join([*lines, "=" * WIDTH])


def _line(name: str, value: float) -> str:
    shown = str(value) if isinstance(value, int) else f"{value:.2f}"
    return f"{name:<40} {shown:<10}".rstrip()


def as_markdown(result: Result, compared: Sequence[Figure] = ()) -> str:
    totals = markdown_table(
        ("", "value"),
        (
            ("successful requests", f"{len(result.good):,}"),
            ("failed, those that were refused included", f"{result.num_failed:,}"),
            ("refused with 429", f"{result.num_refused:,}"),
            ("seconds", f"{result.seconds:.2f}"),
            ("input tokens", f"{result.input_tokens:,}"),
            ("of them cached, as the server says", f"{result.cached_tokens:,}"),
            ("output tokens", f"{result.output_tokens:,}"),
            ("requests/s", f"{result.requests_per_second:.2f}"),
            ("output tokens/s", f"{result.output_tokens_per_second:.1f}"),
            ("tokens/s", f"{result.total_tokens_per_second:.1f}"),
            ("sent late by the client, P99, ms", f"{1e3 * result.lateness.p99:.1f}"),
            ("the client's share of a core", f"{result.client_share:.0%}"),
        ),
    )
    times = markdown_table(
        ("ms", "mean", "median", "P90", "P99"),
        [
            (name, *(f"{1e3 * one:.1f}" for one in (s.mean, s.median, s.p90, s.p99)))
            for name, s in spreads(result).items()
        ],
    )
    tables = [totals, times, *([agreement_table(compared)] if compared else [])]
    return "\n\n".join(tables).rstrip() + "\n"


def faults_as_text(result: Result) -> str:
    """The first of them; empty if there are none."""
    found = list(result.faults)
    if len(found) > MOST_FAULTS:
        found[MOST_FAULTS:] = [f"and {len(found) - MOST_FAULTS} more"]
    return "".join(f"{one}\n" for one in found)


def as_json(result: Result, compared: Sequence[Figure] = ()) -> str:
    """With the names of vLLM's benchmark, and some more."""
    figures: dict[str, Any] = {
        "url": result.target.url,
        "model_id": result.target.model,
        "server": result.target.server.name,
        "api": result.target.api,
        "num_prompts": result.load.num_requests,
        "request_rate": None if math.isinf(result.load.rate) else result.load.rate,
        "max_concurrency": result.load.concurrency,
        "sampling": result.load.sampling.as_fields(result.target.server, 0),
        "duration": result.seconds,
        "completed": len(result.good),
        "failed": result.num_failed,
        "refused": result.num_refused,
        "total_input_tokens": result.input_tokens,
        "total_cached_tokens": result.cached_tokens,
        "total_output_tokens": result.output_tokens,
        "request_throughput": result.requests_per_second,
        "output_throughput": result.output_tokens_per_second,
        "total_token_throughput": result.total_tokens_per_second,
        "p99_lateness_ms": _ms(result.lateness.p99),
        "client_cpu_share": result.client_share,
        "faults": result.faults,
        "agreement": [asdict(figure) for figure in compared],
    }
    for name, spread in spreads(result).items():
        for statistic in ("mean", "median", "std", "p90", "p99"):
            figures[f"{statistic}_{name.lower()}_ms"] = _ms(getattr(spread, statistic))
    return json.dumps(figures, indent=2) + "\n"


def _ms(seconds: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(seconds) else 1e3 * seconds
