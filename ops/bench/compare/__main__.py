"""Peers side by side: the same weights, the same requests, a fresh server each, taking turns.

``python -m ops.bench.compare [--peers pomona llama.cpp] [--rounds N]``. A random model of Qwen3's
shape with 100 million parameters is served by each peer that is installed, in each precision;
``python -m ops.bench.compare.install mlx-lm llama.cpp vllm-mlx`` gets them. Results are in
``compare.md``, ``compare.svg`` and ``compare.json``.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from ops.bench.compare import model
from ops.bench.compare.peers import CACHE, OURS, PEERS, Peer
from ops.bench.compare.report import chart, report
from ops.bench.compare.results import Results
from ops.bench.compare.rounds import Plan, measure
from ops.bench.machine import Machine, measure_machine
from ops.bench.serve.writing import WordWriter, tokens_of


def installed(names: list[str], cache: Path) -> tuple[dict[Peer, Path], dict[str, str]]:
    """The programs of peers that are there, and what to tell of each peer."""
    programs: dict[Peer, Path] = {}
    versions = {}
    for peer in PEERS:
        program = peer.find(cache)
        if program is None:
            versions[peer.name] = f"not installed: {peer.how}"
        elif peer.name not in names:
            versions[peer.name] = "left out"
        else:
            programs[peer] = program
            versions[peer.name] = peer.version(cache)
    versions[OURS.name] = metadata.version("pomona-serve")
    return programs, versions


def write(
    folder: Path, results: Results, plan: Plan, machine: Machine, about: dict[str, str]
) -> None:
    text = json.dumps(
        {
            "machine": asdict(machine),
            "versions": about,
            "output_tokens": plan.output_tokens,
            **asdict(results),
        },
        indent=1,
    )
    (folder / "compare.json").write_text(text + "\n")
    if results.trials:
        tables = report(results, machine, plan.weights, about, OURS.name)
        (folder / "compare.md").write_text(tables)
        (folder / "compare.svg").write_text(chart(results, plan.output_tokens))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.compare", description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--precisions", nargs="+", choices=model.PRECISIONS, default=model.PRECISIONS
    )
    parser.add_argument("--at-once", nargs="+", type=int, default=[1, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests-each", type=int, default=2, help="for each of those at once")
    parser.add_argument(
        "--patience-s", type=float, default=60.0, help="for four short answers, or leave it out"
    )
    parser.add_argument("--cache", type=Path, default=CACHE, help="where peers are: %(default)s")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the results")
    arguments = parser.parse_args()
    # Servers are ended whoever ends this.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    programs, about = installed(arguments.peers, arguments.cache)
    for name, what in about.items():
        print(f"{name}: {what}", file=sys.stderr)
    machine = measure_machine()
    logs = arguments.out / "compare-logs"
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pomona-") as folder:
        weights = model.write(Path(folder), arguments.precisions)
        plan = Plan(
            programs,
            weights,
            WordWriter(tokens_of(str(weights[0].mlx))),
            arguments.at_once,
            arguments.rounds,
            arguments.requests_each,
            patience_s=arguments.patience_s,
        )
        measure(plan, logs, lambda results: write(arguments.out, results, plan, machine, about))
    print((arguments.out / "compare.md").read_text())


if __name__ == "__main__":
    main()
