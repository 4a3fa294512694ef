from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from unittest.mock import Mock

import pytest

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
    stats = Mock(side_effect=[IDLE, IDLE, BUSY, BUSY, asyncio.CancelledError])
    with caplog.at_level(logging.INFO), pytest.raises(asyncio.CancelledError):
        await load_summary.log_load(stats)
    assert len(caplog.messages) == 1


async def test_stats_that_fail_are_logged_and_the_next_interval_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(load_summary, "INTERVAL_S", 1e-9)
    stats = Mock(side_effect=[IDLE, KeyError("a fault"), BUSY, asyncio.CancelledError])
    with caplog.at_level(logging.INFO), pytest.raises(asyncio.CancelledError):
        await load_summary.log_load(stats)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "KeyError: 'a fault'" in caplog.text
