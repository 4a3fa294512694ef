"""``python -m ops.bench.cluster [--in-front haproxy|nginx|nothing] [--only NAME ...]``, as root."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from ops.bench.cluster.balancers import CONFIGURATIONS, start_balancer
from ops.bench.cluster.cluster import Cluster, cluster
from ops.bench.cluster.outcome import Answers, Endpoint, observe
from ops.bench.cluster.requests import requests
from ops.bench.cluster.requirements import what_is_missing
from ops.bench.cluster.scenarios import NUM_ENGINES, NUM_STREAMS, SCENARIOS
from ops.bench.cluster.status import is_ready, wait_until
from ops.bench.timing import markdown_table

COLUMNS = (
    "what happens",
    "streams",
    "failed",
    "differing",
    "next token of all after, s",
    "longest silence, s",
    "recovered after, s",
)
NOTHING = "nothing"


def main() -> None:
    arguments = _parser().parse_args()
    if missing := what_is_missing():
        sys.exit(missing)
    with (
        tempfile.TemporaryDirectory(prefix="pomona-") as folder,
        cluster(Path(folder), num_workers=NUM_ENGINES) as running,
    ):
        endpoint = _endpoint(running, arguments.in_front)
        rows = run(running, endpoint, arguments.only or list(SCENARIOS))
    sys.stdout.write(markdown_table(COLUMNS, rows) + "\n")


def run(running: Cluster, endpoint: Endpoint, names: list[str]) -> list[tuple[str, ...]]:
    """The table's rows."""
    asked = requests(NUM_STREAMS)
    answers = Answers(running, asked)
    rows: list[tuple[str, ...]] = []
    for name in tqdm(names):
        before = answers.of_now()
        outcome = observe(SCENARIOS[name](running), endpoint, asked)
        rows.append(
            (
                name,
                str(len(outcome.streams)),
                str(len(outcome.failures)),
                str(len(outcome.differences(before, answers.of_now()))),
                f"{outcome.next_token_s:.1f}",
                f"{outcome.longest_silence_s:.1f}",
                f"{outcome.recovered_s:.0f}",
            )
        )
    return rows


def _endpoint(running: Cluster, in_front: str) -> Endpoint:
    if in_front == NOTHING:
        return running.gateway_of
    balancer = start_balancer(running.hosts, in_front)
    wait_until(lambda: is_ready(balancer.url), f"{in_front} serves")
    return lambda number: balancer.url


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in-front", choices=[*CONFIGURATIONS, NOTHING], default="haproxy")
    parser.add_argument("--only", choices=list(SCENARIOS), action="append")
    return parser


if __name__ == "__main__":
    main()
