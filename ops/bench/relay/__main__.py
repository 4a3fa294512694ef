"""What a gateway costs: streams through it against the same streams from the replica itself.

``python -m ops.bench.relay [--streams N] [--rounds N]``. Replica, gateway and client are three
processes; direct and relayed streams take turns. *Free running*: the replica sends as fast as it
can, which says how many chunks a second the machine moves. *Paced*: one token every 10 ms and
stream, which is what an engine does, and what the time to the first chunk is measured at.

They share the processors with whatever else runs: the last line tells how much that was.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass, field

import psutil
import uvloop
from tqdm import tqdm

from ops.bench.relay.client import Load, run_load
from ops.bench.relay.processor_time import OthersShare, cpu_s
from ops.bench.relay.servers import SECRET, process, serve_gateway, serve_replicas
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


def report(direct: Way, relayed: Way, streams: int) -> str:
    rows = [
        (
            f"{name}, chunks/s",
            f"{one:,.0f}",
            f"{other:,.0f}",
            f"{100 * other / one:.0f}%",
        )
        for name, one, other in (
            ("free running", direct.free_rate, relayed.free_rate),
            ("paced", direct.paced_rate, relayed.paced_rate),
        )
    ]
    for quantile in (0.5, 0.99):
        one, other = (1000 * way.first_chunk_s(quantile) for way in (direct, relayed))
        name = f"paced, ms to the first chunk, p{100 * quantile:.0f}"
        rows.append((name, f"{one:.2f}", f"{other:.2f}", f"+{other - one:.2f}"))
    one, other = (1e6 * way.paced_cpu_s_a_chunk for way in (direct, relayed))
    rows.append(("paced, us of its processor a chunk", f"{one:.0f}", f"{other:.0f}", ""))
    columns = (f"{streams} streams", direct.name, relayed.name, "")
    return markdown_table(columns, rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.relay", description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    arguments = parser.parse_args()
    with (
        process(serve_replicas, {"free": 0.0, "paced": STEP_S}) as (replicas, replica_process),
        process(serve_gateway, replicas) as (gateway, gateway_process),
    ):
        direct = Way(
            "replica", {replica.model: replica.url for replica in replicas}, replica_process
        )
        relayed = Way("gateway", dict.fromkeys(("free", "paced"), gateway), gateway_process)
        others = OthersShare(psutil.Process(), replica_process, gateway_process)
        uvloop.run(
            measure(
                [direct, relayed],
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
