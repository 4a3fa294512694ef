from __future__ import annotations

import asyncio
import time

import psutil
import pytest

from ops.bench.relay.__main__ import Way, measure, report
from ops.bench.relay.client import Load
from ops.bench.relay.processor_time import OthersShare
from ops.bench.relay.servers import SECRET, process, serve_gateway, serve_replicas
from ops.bench.relay.watchers import watching

pytestmark = pytest.mark.serve


@pytest.mark.exhaustive
def test_a_small_run_of_real_processes() -> None:
    with (
        process(serve_replicas, {"free": 0.0, "paced": 0.001}) as (replicas, one),
        process(serve_gateway, replicas) as (gateway, other),
    ):
        direct = Way("replica", {replica.model: replica.url for replica in replicas}, one)
        there = dict.fromkeys(("free", "paced"), gateway)
        relayed, watched = Way("gateway", there, other), Way("watched", there, other, watched_by=2)
        asyncio.run(measure([direct, relayed, watched], streams=3, rounds=1, tokens=5))
    for way in (direct, relayed, watched):
        # A role, five tokens and a finish reason.
        assert [load.num_chunks for load in way.free] == [3 * 7]
        assert [load.num_chunks for load in way.paced] == [2 * 3 * 7]
        assert len(way.paced[0].first_chunk_s) == 6
        assert way.free_rate > 0


async def fail() -> None:
    raise OSError("no port is free")


@pytest.mark.exhaustive
def test_a_server_that_fails_is_told_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="fail failed to start"), process(fail):
        pass
    assert "OSError: no port is free" in capfd.readouterr().err


def test_a_report() -> None:
    own = psutil.Process()
    first = [0.001, 0.002, 0.009], [0.003, 0.004, 0.010]
    direct = Way("replica", {}, own, [Load(1000, 1.0)], [Load(400, 1.0, first[0], 0.004)])
    relayed = Way("gateway", {}, own, [Load(1600, 2.0)], [Load(400, 1.0, first[1], 0.008)])
    assert report(direct, [relayed], 64).splitlines()[2:] == [
        "| free running, chunks/s | 1,000 | 800 | 80% |",
        "| paced, chunks/s | 400 | 400 | 100% |",
        "| paced, ms to the first chunk, p50 | 2.00 | 4.00 | +2.00 |",
        "| paced, ms to the first chunk, p99 | 2.00 | 4.00 | +2.00 |",
        "| paced, us of its processor a chunk | 10 | 20 |  |",
    ]
    watched = Way("20 watch", {}, own, relayed.free, relayed.paced, watched_by=20)
    told = report(direct, [relayed, watched], 64).splitlines()
    assert told[0] == "| 64 streams | replica | gateway |  | 20 watch |  |"
    assert told[2] == "| free running, chunks/s | 1,000 | 800 | 80% | 800 | 80% |"


@pytest.mark.exhaustive
def test_watchers_follow_the_fleet_until_the_block_ends() -> None:
    with (
        process(serve_replicas, {"paced": 0.001}) as (replicas, _),
        process(serve_gateway, replicas) as (gateway, gateway_process),
    ):

        async def watch() -> int:
            async with watching(gateway, SECRET, 3) as told:
                first = told.num_views
                async with asyncio.timeout(60):
                    while told.num_views < first + 3:
                        await asyncio.sleep(0.05)
            return first

        assert asyncio.run(watch()) >= 3
        deadline = time.monotonic() + 60
        while _num_connected(gateway_process, gateway) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _num_connected(gateway_process, gateway) == 0


def _num_connected(process: psutil.Process, url: str) -> int:
    port = int(url.rpartition(":")[2])
    connections = process.net_connections()
    return sum(one.laddr.port == port and one.status == "ESTABLISHED" for one in connections)


def test_others_share_is_what_own_processes_did_not_use() -> None:
    without, own = OthersShare(), OthersShare(psutil.Process())
    deadline = time.monotonic() + 60
    while own.so_far() == 1.0 and time.monotonic() < deadline:
        sum(range(100_000))
    assert 0.0 <= own.so_far() < 1.0
    assert without.so_far() == 1.0
