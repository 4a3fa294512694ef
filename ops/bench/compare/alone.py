"""Peers for a single user, by turns of one request.

``python -m ops.bench.compare.alone [--peers pomona llama.cpp] [--precisions f32] [--turns N]
[--threads N]``. A machine's memory may be quicker at one moment than at the next, for one that
others share by half, and a single user's tokens come as fast as weights are read. So all servers
stay up, and while one of them answers a request, the processes of the others are stopped. Before
each request it is measured what threads can read: on average, since a rate of tokens is an average,
too.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from backend_metal.devices.cpu.blas import physical_cores
from ops.bench.compare import model
from ops.bench.compare.__main__ import installed
from ops.bench.compare.model import Weights
from ops.bench.compare.peers import CACHE, OURS, PEERS, Peer
from ops.bench.compare.report import decode_rate, rate
from ops.bench.compare.results import Results, Trial
from ops.bench.compare.rounds import Plan, answered, serving, trial
from ops.bench.compare.server import Running
from ops.bench.machine import COPY_BYTES, read_bandwidth
from ops.bench.serve import Target
from ops.bench.serve.writing import WordWriter, tokens_of
from ops.bench.timing import markdown_table

PASSES = 20
"""Over the memory: some tenths of a second."""


@dataclass
class Turns:
    """Of servers with the same weights; ``results.trials`` has turns for rounds."""

    weights: Weights
    results: Results = field(default_factory=Results)
    read_bytes_per_second: list[float] = field(default_factory=list)
    """Of each turn."""


def measure(plan: Plan, weights: Weights, logs: Path, bandwidth: Callable[[], float]) -> Turns:
    """As many turns as the plan has rounds. ``bandwidth`` is called before each request, while
    every server is stopped. Raises ``RuntimeError`` if one does not start or answer."""
    turns = Turns(weights)
    with ExitStack() as stack:
        servers: dict[Peer, Running] = {}
        targets: dict[Peer, Target] = {}
        for peer in tqdm(plan.programs, desc=f"{weights.precision}, servers", disable=None):
            log = logs / f"alone-{weights.precision}-{peer.name}.log"
            servers[peer], targets[peer] = stack.enter_context(serving(plan, weights, peer, log))
        for number in tqdm(range(plan.rounds), desc=f"{weights.precision}, turns", disable=None):
            peers = deque(servers)
            peers.rotate(number)
            read = []
            for peer in peers:
                with _stopped(servers.values()):
                    read.append(bandwidth())
                with _stopped(server for other, server in servers.items() if other is not peer):
                    turns.results.trials.append(_ask(plan, weights, peer, targets[peer], number))
            turns.read_bytes_per_second.append(statistics.harmonic_mean(read))
    return turns


@contextmanager
def _stopped(servers: Iterable[Running]) -> Iterator[None]:
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(server.stopped())
        yield


def _ask(plan: Plan, weights: Weights, peer: Peer, target: Target, number: int) -> Trial:
    result = answered(target, plan.load(number, at_once=1, count=1))
    return trial(result, peer, weights, number, 1, plan.output_tokens)


def report(turns: Turns, ours: str) -> str:
    """Medians of turns, and of their ratios."""
    results, precision = turns.results, turns.weights.precision
    rows = []
    for peer in results.peers(precision):
        decode = results.by_round(precision, peer, 1, decode_rate)
        low, middle, high = statistics.quantiles(decode.values(), n=4)
        shares = [
            rate_of_turn * turns.weights.mlx_bytes / turns.read_bytes_per_second[number]
            for number, rate_of_turn in decode.items()
        ]
        leads = ["", ""]
        if peer != ours and ours in results.peers(precision):
            found = [
                results.lead(precision, ours, peer, 1, figure) for figure in (rate, decode_rate)
            ]
            leads = [f"{lead:.2f}" for lead in found if lead is not None]
        rows.append(
            (
                f"{precision}, {peer}",
                f"{results.median(precision, peer, 1, rate):.1f}",
                f"{middle:.1f} ({low:.1f} to {high:.1f})",
                f"{statistics.median(shares):.0%}",
                *leads,
            )
        )
    columns = (
        f"alone, {len(turns.read_bytes_per_second)} turns",
        "output tok/s",
        "decode, tok/s (middle half)",
        "of the read bandwidth",
        f"{ours} is faster by",
        "in decode",
    )
    return markdown_table(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.compare.alone", description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="+", choices=names, default=[OURS.name, "llama.cpp"])
    parser.add_argument(
        "--precisions", nargs="+", choices=model.PRECISIONS, default=model.PRECISIONS
    )
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument(
        "--threads",
        type=int,
        default=physical_cores(),
        help="that multiply, and that read: with fewer than the machine has cores, servers and "
        "clients have cores of their own (default: %(default)s)",
    )
    parser.add_argument("--cache", type=Path, default=CACHE, help="where peers are: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("compare-logs"), help="folder for logs")
    arguments = parser.parse_args()
    if arguments.turns < 2:
        parser.error("--turns must be at least 2")
    if arguments.threads < 1:
        parser.error("--threads must be at least 1")
    # Servers are ended whoever ends this.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    programs, about = installed(arguments.peers, arguments.cache)
    for name in arguments.peers:
        print(f"{name}: {about[name]}", file=sys.stderr)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pomona-") as folder:
        written = model.write(Path(folder), arguments.precisions)
        writer = WordWriter(tokens_of(str(written[0].mlx)))
        plan = Plan(
            programs,
            written,
            writer,
            at_once=(1,),
            rounds=arguments.turns,
            threads=arguments.threads,
        )
        for weights in written:
            turns = measure(
                plan,
                weights,
                arguments.out,
                lambda: read_bandwidth(COPY_BYTES, arguments.threads, PASSES, statistics.mean),
            )
            print(report(turns, OURS.name), flush=True)


if __name__ == "__main__":
    main()
