from __future__ import annotations

import asyncio

import pytest

from deployments.backend import EngineConfig
from ops.bench.overload.__main__ import measure
from ops.bench.overload.client import MAX_TOKENS, Outcome
from ops.bench.overload.report import Phase, report
from ops.bench.overload.servers import Sample, engine_and_gateway

pytestmark = pytest.mark.serve


def served(seconds_per_token: float, first: float = 0.02) -> Outcome:
    last = first + seconds_per_token * (MAX_TOKENS - 1)
    return Outcome(0.0, 0.0, 200, "", first, last, whole=True)


@pytest.mark.exhaustive
def test_a_small_run_of_real_processes() -> None:
    config = EngineConfig(max_num_seqs=2, max_queued_requests=1, num_kv_blocks=64)
    with engine_and_gateway(config) as running:
        measured = asyncio.run(measure(running, num_clients=2, times=40, seconds=4.0, num_alone=2))
    phases = {phase.name: phase for phase in measured.phases}
    assert list(phases) == ["alone", "capacity", "overload x 40", "alone again"]
    assert len(phases["alone"].served) == len(phases["alone again"].served) == 2
    assert len(phases["capacity"].served) == len(phases["capacity"].outcomes) > 0
    overload = phases["overload x 40"]
    # The second that arrives in the time that one takes is one too many for the queue.
    assert overload.served
    assert overload.refused
    assert overload.num_failed == 0
    assert measured.samples[0].metrics["pomona_memory_active_bytes"] > 0
    assert "| other failures | 0 | 0 | 0 | 0 |" in report(
        measured.phases, measured.samples, measured.drained_s
    )


def test_a_report() -> None:
    refused = [Outcome(0.0, 0.1, 429, "3"), Outcome(0.0, 0.0, 429, "12")]
    broken = [Outcome(0.0), Outcome(0.0, 0.0, 429, ""), Outcome(0.0, 0.0, 200, "", 0.1, 0.2)]
    phases = [
        Phase("alone", [served(0.004)], 1.0),
        Phase("overload", [served(0.0075), served(0.0075, first=1.0), *refused, *broken], 2.0),
        Phase("alone again", [served(0.006, first=0.03)], 1.0),
    ]
    sample = Sample(
        0.0,
        {"engine": 300 << 20, "gateway": 100 << 20},
        {"engine": 20, "gateway": 30},
        {
            "pomona_memory_active_bytes": float(200 << 20),
            "pomona_requests_running": 9.0,
            "pomona_requests_waiting": 32.0,
        },
    )
    assert report(phases, [sample], 2.5).splitlines() == [
        "|  | alone | overload | alone again |",
        "| --- | ---: | ---: | ---: |",
        "| requests a second | 1.0 | 3.5 | 1.0 |",
        "| served a second | 3.7 | 1.4 | 2.5 |",
        "| refused a second, with 429 | 0.0 | 1.0 | 0.0 |",
        "| other failures | 0 | 3 | 0 |",
        "| Retry-After, s |  | 3 to 12 |  |",
        "| TPOT p50, ms (times alone) | 4.0 (0.80) | 7.5 (1.50) | 6.0 (1.20) |",
        "| TPOT p90, ms (times alone) | 4.0 (0.80) | 7.5 (1.50) | 6.0 (1.20) |",
        "| TPOT p99, ms (times alone) | 4.0 (0.80) | 7.5 (1.50) | 6.0 (1.20) |",
        "| TTFT p50, ms | 20 | 20 | 30 |",
        "| TTFT p99, ms | 20 | 20 | 30 |",
        "| sent late by the client | 0 | 1 | 0 |",
        "",
        "| under overload, after | 0 s |",
        "| --- | ---: |",
        "| engine's process, MiB | 300 |",
        "| gateway's process, MiB | 100 |",
        "| `pomona_memory_active_bytes`, MiB | 200 |",
        "| engine's open files | 20 |",
        "| gateway's open files | 30 |",
        "| requests running | 9 |",
        "| requests waiting | 32 |",
        "",
        "All that was accepted is answered 2.5 s after the last arrival; the next request has its "
        "first token after 30 ms.",
    ]
