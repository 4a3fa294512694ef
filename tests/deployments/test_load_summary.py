from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from deployments.backend import BackendStats
from deployments.replica import load_summary
from tests.support.deployments.stats import idle_stats

IDLE = idle_stats()
BUSY = replace(
    IDLE,
    steps=7,
    requests_running=3,
    requests_waiting=2,
    prompt_tokens=1000,
    generation_tokens=500,
    kv_cache_blocks_free=2,
    prefix_cache_query_tokens=100,
    prefix_cache_hit_tokens=40,
)


def test_an_engine_that_computes_nothing_is_not_told_of() -> None:
    assert load_summary.load_summary(BUSY, BUSY, 10.0) is None


def test_rates_are_of_the_time_between() -> None:
    now = replace(BUSY, steps=9, generation_tokens=700)
    assert load_summary.load_summary(BUSY, now, 10.0) == (
        "3 running, 2 waiting, 0 prompt tokens/s, 20 generated tokens/s, KV cache 75%"
    )
    assert load_summary.load_summary(IDLE, BUSY, 10.0) == (
        "3 running, 2 waiting, 100 prompt tokens/s, 50 generated tokens/s, KV cache 75%, "
        "prefix cache hits 40%"
    )


async def test_each_interval_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(load_summary, "INTERVAL_S", 1e-9)
    told: Iterator[BackendStats] = iter([IDLE, IDLE, BUSY, BUSY])
    with caplog.at_level(logging.INFO), pytest.raises(RuntimeError, match="StopIteration"):
        await load_summary.log_load(lambda: next(told))
    assert len(caplog.messages) == 1
