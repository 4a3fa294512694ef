"""What a gateway costs: streams through it against the same streams from the replica itself.

``python -m ops.bench.relay [--streams N] [--rounds N] [--watchers N]``. Replica, gateway and client
are three processes; direct and relayed streams take turns, and relayed ones while watchers follow
the fleet at the gateway, as an open page does. *Free running*: the replica sends as fast as it
can, which says how many chunks a second the machine moves. *Paced*: one token every 10 ms and
stream, which is what an engine does, and what the time to the first chunk is measured at.

They share the processors with whatever else runs: the last line tells how much that was.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil
import uvloop
from tqdm import tqdm

from ops.bench.relay.client import Load, run_load
from ops.bench.relay.processor_time import OthersShare, cpu_s
from ops.bench.relay.servers import SECRET, process, serve_gateway, serve_replicas
from ops.bench.relay.watchers import watching
from ops.bench.timing import markdown_table, quantile_of

STEP_S = 0.010


@dataclass
class Way:
    """All loads of one way to the replica."""

    name: str
    url_of_model: dict[str, str]
    server: psutil.Process
    """The one that the client talks to."""
    free: list[Load] = field(default_factory=list)
    paced: list[Load] = field(default_factory=list)
    watched_by: int = 0
    """Clients that follow the fleet there meanwhile."""

    @property
    def free_rate(self) -> float:
        return statistics.median(load.chunks_per_second for load in self.free)

    @property
    def paced_rate(self) -> float:
        return statistics.median(load.chunks_per_second for load in self.paced)

    @property
    def paced_cpu_s_a_chunk(self) -> float:
        return statistics.median(load.server_cpu_s / load.num_chunks for load in self.paced)

    def first_chunk_s(self, quantile: float) -> float:
        return quantile_of([one for load in self.paced for one in load.first_chunk_s], quantile)


async def measure(ways: list[Way], *, streams: int, rounds: int, tokens: int) -> None:
    for way in ways:
        await run_load(
            way.url_of_model["free"], SECRET, "free", streams=8, rounds=1, tokens=8, stagger_s=0
        )
    for _ in tqdm(range(rounds), desc="rounds"):
        for way in ways:
            for model, loads, stagger_s in (("free", way.free, 0.0), ("paced", way.paced, 1.0)):
                async with watching(way.url_of_model[model], SECRET, way.watched_by):
                    before = cpu_s(way.server)
                    load = await run_load(
                        way.url_of_model[model],
                        SECRET,
                        model,
                        streams=streams,
                        rounds=1 if model == "free" else 2,
                        tokens=tokens,
                        stagger_s=stagger_s,
                    )
                    load.server_cpu_s = cpu_s(way.server) - before
                loads.append(load)


def report(direct: Way, relayed: Sequence[Way], streams: int) -> str:
    columns = [f"{streams} streams", direct.name]
    for way in relayed:
        columns += [way.name, ""]
    rates = [
        _row("free running, chunks/s", direct, relayed, lambda way: way.free_rate, _percent),
        _row("paced, chunks/s", direct, relayed, lambda way: way.paced_rate, _percent),
    ]
    delays = [
        _row(
            f"paced, ms to the first chunk, p{100 * quantile:.0f}",
            direct,
            relayed,
            lambda way, quantile=quantile: 1000 * way.first_chunk_s(quantile),  # type: ignore[misc]
            lambda one, other: f"+{other - one:.2f}",
            digits=2,
        )
        for quantile in (0.5, 0.99)
    ]
    processor = _row(
        "paced, us of its processor a chunk",
        direct,
        relayed,
        lambda way: 1e6 * way.paced_cpu_s_a_chunk,
        lambda one, other: "",
    )
    return markdown_table(columns, [*rates, *delays, processor]) + "\n"


def _row(
    name: str,
    direct: Way,
    relayed: Sequence[Way],
    figure: Callable[[Way], float],
    against: Callable[[float, float], str],
    digits: int = 0,
) -> list[str]:
    one = figure(direct)
    row = [name, f"{one:,.{digits}f}"]
    for other in map(figure, relayed):
        row += [f"{other:,.{digits}f}", against(one, other)]
    return row


def _percent(one: float, other: float) -> str:
    return f"{100 * other / one:.0f}%"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.relay", description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--watchers", type=int, default=0)
    arguments = parser.parse_args()
    with (
        process(serve_replicas, {"free": 0.0, "paced": STEP_S}) as (replicas, replica_process),
        process(serve_gateway, replicas) as (gateway, gateway_process),
    ):
        direct = Way(
            "replica", {replica.model: replica.url for replica in replicas}, replica_process
        )
        there = dict.fromkeys(("free", "paced"), gateway)
        relayed = [Way("gateway", there, gateway_process)]
        if num := arguments.watchers:
            relayed.append(Way(f"{num} watch", there, gateway_process, watched_by=num))
        others = OthersShare(psutil.Process(), replica_process, gateway_process)
        uvloop.run(
            measure(
                [direct, *relayed],
                streams=arguments.streams,
                rounds=arguments.rounds,
                tokens=arguments.tokens,
            )
        )
        share = others.so_far()
    sys.stdout.write(report(direct, relayed, arguments.streams))
    sys.stdout.write(f"\nOther programs had {share:.0%} of the processor time that was used.\n")


if __name__ == "__main__":
    main()
