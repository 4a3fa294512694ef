"""Figures of known answers, against numpy and against what others' reports look like."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from ops.bench.serve import (
    Answer,
    Conversation,
    Load,
    Result,
    Sampling,
    Spread,
    Target,
    Turn,
    Usage,
)
from ops.bench.serve.report import as_json, as_markdown, as_text, faults_as_text


def answer(number: int, sent: float, times: tuple[float, ...], **fields: object) -> Answer:
    known: dict[str, object] = {
        "due": sent - 0.001,
        "ended": (times or (sent,))[-1] + 0.002,
        "status": 200,
        "times": times,
        "usage": Usage(10, len(times), 4),
    }
    return Answer(number, 0, sent=sent, **{**known, **fields})  # type: ignore[arg-type]


def result(*answers: Answer, start: float = 100.0, **load: object) -> Result:
    conversations = [Conversation((Turn("a", 4),))] * len(answers)
    return Result(
        Target("http://host", "m", api_key="hidden"),
        Load(conversations, **load),  # type: ignore[arg-type]
        answers,
        (),
        start,
        client_cpu_s=0.5,
    )


TWO = (
    answer(0, 100.0, (100.1, 100.15, 100.25, 100.3)),
    answer(1, 100.5, (101.0, 101.1)),
)
BAD = (
    answer(2, 100.0, (101.998,), status=500, faults=("it broke",)),
    answer(3, 100.0, (), status=429, retry_after="1"),
)


def test_times_are_what_their_names_say() -> None:
    figures = result(*TWO, *BAD)
    assert figures.time_to_first_token.mean == pytest.approx(0.3)
    assert figures.time_to_first_token.p99 == pytest.approx(0.496)
    assert figures.time_per_output_token.mean == pytest.approx((0.2 / 3 + 0.1) / 2)
    assert figures.inter_token_latency.mean == pytest.approx(np.mean([0.05, 0.1, 0.05, 0.1]))
    assert figures.latency.mean == pytest.approx((0.3 + 0.6) / 2)
    assert figures.lateness.mean == pytest.approx(0.001)
    assert figures.seconds == pytest.approx(2.0)
    assert figures.output_tokens_per_second == pytest.approx(3.0)
    assert figures.total_tokens_per_second == pytest.approx(13.0)
    assert figures.requests_per_second == pytest.approx(1.0)
    assert figures.client_share == pytest.approx(0.25)
    assert (figures.input_tokens, figures.cached_tokens, figures.output_tokens) == (20, 8, 6)
    assert (len(figures.good), figures.num_failed, figures.num_refused) == (2, 2, 1)


def test_a_spread_is_numpys() -> None:
    values = np.random.default_rng(0).exponential(1.0, 1000).tolist()
    spread = Spread.of(values)
    assert spread.p99 == pytest.approx(np.percentile(values, 99))
    assert spread.p90 == pytest.approx(np.percentile(values, 90))
    assert spread.median == pytest.approx(np.median(values))
    assert (spread.mean, spread.std) == pytest.approx((np.mean(values), np.std(values)))
    assert math.isnan(Spread.of([]).median)


def test_the_report_is_the_one_that_everybody_knows() -> None:
    assert as_text(result(*TWO, *BAD, concurrency=2, rate=3.5)).splitlines() == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     2",
        "Failed requests:                         2",
        "Maximum request concurrency:             2",
        "Request rate configured (RPS):           3.50",
        "Benchmark duration (s):                  2.00",
        "Total input tokens:                      20",
        "Total generated tokens:                  6",
        "Request throughput (req/s):              1.00",
        "Output token throughput (tok/s):         3.00",
        "Total token throughput (tok/s):          13.00",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          300.00",
        "Median TTFT (ms):                        300.00",
        "P90 TTFT (ms):                           460.00",
        "P99 TTFT (ms):                           496.00",
        "-----Time per Output Token (excl. 1st token)------",
        "Mean TPOT (ms):                          83.33",
        "Median TPOT (ms):                        83.33",
        "P90 TPOT (ms):                           96.67",
        "P99 TPOT (ms):                           99.67",
        "---------------Inter-token Latency----------------",
        "Mean ITL (ms):                           75.00",
        "Median ITL (ms):                         75.00",
        "P90 ITL (ms):                            100.00",
        "P99 ITL (ms):                            100.00",
        "----------------End-to-end Latency----------------",
        "Mean E2EL (ms):                          450.00",
        "Median E2EL (ms):                        450.00",
        "P90 E2EL (ms):                           570.00",
        "P99 E2EL (ms):                           597.00",
        "==================================================",
    ]


def test_markdown() -> None:
    table = as_markdown(result(*TWO, *BAD))
    assert "| refused with 429 | 1 |" in table
    assert "| output tokens/s | 3.0 |" in table
    assert "| TTFT | 300.0 | 300.0 | 460.0 | 496.0 |" in table


def test_json_has_the_names_that_others_read_and_no_key() -> None:
    told = json.loads(as_json(result(*TWO, *BAD, concurrency=2, sampling=Sampling(top_p=0.9))))
    assert told["completed"] == 2
    assert told["output_throughput"] == pytest.approx(3.0)
    assert told["p99_ttft_ms"] == pytest.approx(496.0)
    assert told["std_itl_ms"] == pytest.approx(25.0)
    assert (told["request_rate"], told["max_concurrency"]) == (None, 2)
    assert told["sampling"] == {"temperature": 0.0, "top_p": 0.9}
    assert told["faults"] == ["conversation 2, turn 0: it broke"]
    assert "hidden" not in json.dumps(told)


def test_nothing_that_succeeded_is_told_as_such() -> None:
    figures = result(BAD[0])
    assert json.loads(as_json(figures))["mean_ttft_ms"] is None
    assert "Mean TTFT (ms):                          nan" in as_text(figures)


def test_the_first_faults_are_told() -> None:
    many = [answer(number, 100.0, (), faults=("bad",)) for number in range(13)]
    lines = faults_as_text(result(*many)).splitlines()
    assert len(lines) == 11
    assert lines[0] == "conversation 0, turn 0: bad"
    assert lines[-1] == "and 3 more"
    assert faults_as_text(result(*TWO)) == ""
