from __future__ import annotations

import asyncio

from ops.bench.relay import Way, measure, report
from ops.bench.relay_client import Load
from ops.bench.relay_servers import process, serve_gateway, serve_replicas


def test_a_small_run_of_real_processes() -> None:
    with (
        process(serve_replicas, {"free": 0.0, "paced": 0.001}) as replicas,
        process(serve_gateway, replicas) as gateway,
    ):
        direct = Way("replica", {replica.model: replica.url for replica in replicas})
        relayed = Way("gateway", dict.fromkeys(("free", "paced"), gateway))
        asyncio.run(measure([direct, relayed], streams=3, rounds=1, tokens=5))
    for way in (direct, relayed):
        # A role, five tokens and a finish reason.
        assert [load.num_chunks for load in way.free] == [3 * 7]
        assert [load.num_chunks for load in way.paced] == [2 * 3 * 7]
        assert len(way.paced[0].first_chunk_s) == 6
        assert way.free_rate > 0


def test_a_report() -> None:
    direct = Way("replica", {}, [Load(1000, 1.0)], [Load(400, 1.0, [0.001, 0.002, 0.009])])
    relayed = Way("gateway", {}, [Load(1600, 2.0)], [Load(400, 1.0, [0.003, 0.004, 0.010])])
    assert report(direct, relayed, 64).splitlines()[2:] == [
        "| free running, chunks/s | 1,000 | 800 | 80% |",
        "| paced, chunks/s | 400 | 400 | 100% |",
        "| paced, ms to the first chunk, p50 | 2.00 | 4.00 | +2.00 |",
        "| paced, ms to the first chunk, p99 | 2.00 | 4.00 | +2.00 |",
    ]
