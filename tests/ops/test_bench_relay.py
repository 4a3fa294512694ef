from __future__ import annotations

import asyncio
import time

import psutil

from ops.bench.relay.__main__ import Way, measure, report
from ops.bench.relay.client import Load
from ops.bench.relay.processor_time import OthersShare
from ops.bench.relay.servers import process, serve_gateway, serve_replicas


def test_a_small_run_of_real_processes() -> None:
    with (
        process(serve_replicas, {"free": 0.0, "paced": 0.001}) as (replicas, one),
        process(serve_gateway, replicas) as (gateway, other),
    ):
        direct = Way("replica", {replica.model: replica.url for replica in replicas}, one)
        relayed = Way("gateway", dict.fromkeys(("free", "paced"), gateway), other)
        asyncio.run(measure([direct, relayed], streams=3, rounds=1, tokens=5))
    for way in (direct, relayed):
        # A role, five tokens and a finish reason.
        assert [load.num_chunks for load in way.free] == [3 * 7]
        assert [load.num_chunks for load in way.paced] == [2 * 3 * 7]
        assert len(way.paced[0].first_chunk_s) == 6
        assert way.free_rate > 0


def test_a_report() -> None:
    own = psutil.Process()
    first = [0.001, 0.002, 0.009], [0.003, 0.004, 0.010]
    direct = Way("replica", {}, own, [Load(1000, 1.0)], [Load(400, 1.0, first[0], 0.004)])
    relayed = Way("gateway", {}, own, [Load(1600, 2.0)], [Load(400, 1.0, first[1], 0.008)])
    assert report(direct, relayed, 64).splitlines()[2:] == [
        "| free running, chunks/s | 1,000 | 800 | 80% |",
        "| paced, chunks/s | 400 | 400 | 100% |",
        "| paced, ms to the first chunk, p50 | 2.00 | 4.00 | +2.00 |",
        "| paced, ms to the first chunk, p99 | 2.00 | 4.00 | +2.00 |",
        "| paced, us of its processor a chunk | 10 | 20 |  |",
    ]


def test_others_share_is_what_own_processes_did_not_use() -> None:
    without, own = OthersShare(), OthersShare(psutil.Process())
    deadline = time.monotonic() + 60
    while own.so_far() == 1.0 and time.monotonic() < deadline:
        sum(range(100_000))
    assert 0.0 <= own.so_far() < 1.0
    assert without.so_far() == 1.0
