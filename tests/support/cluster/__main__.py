"""``python -m tests.support.cluster [--in-front haproxy|nginx|nothing] [--only NAME ...]
[--double-roles]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from ops.bench.timing import markdown_table
from tests.support.cluster.balancers import CONFIGURATIONS, Balancer, start_balancer
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.cluster.double_roles import NUM_HOSTS
from tests.support.cluster.events import NUM_ENGINES
from tests.support.cluster.outcome import Answers, Endpoint, Outcome, observe
from tests.support.cluster.requirements import what_is_missing
from tests.support.cluster.scenarios import OF_DOUBLE_ROLES, SCENARIOS

COLUMNS = (
    "what happens",
    "streams",
    "failed",
    "differing",
    "next token of all after, s",
    "longest silence, s",
    "recovered after, s",
    "alerts",
)
NOTHING = "nothing"


def main() -> None:
    arguments = _parser().parse_args()
    if missing := what_is_missing():
        sys.exit(missing)
    scenarios = OF_DOUBLE_ROLES if arguments.double_roles else SCENARIOS
    names = arguments.only or list(scenarios)
    if unknown := set(names).difference(scenarios):
        sys.exit(f"no such scenario: {', '.join(unknown)}; there is: {', '.join(scenarios)}")
    num_workers = NUM_HOSTS if arguments.double_roles else NUM_ENGINES
    with (
        tempfile.TemporaryDirectory(prefix="pomona-") as folder,
        cluster(Path(folder), num_workers=num_workers, doubled=arguments.double_roles) as running,
    ):
        if arguments.in_front == NOTHING:
            report = run(running, running.gateway_of, names)
        else:
            report = run_behind(start_balancer(running.hosts, arguments.in_front), running, names)
        sys.stdout.write(report)
        sys.stdout.flush()


def run_behind(balancer: Balancer, running: Cluster, names: Sequence[str]) -> str:
    table = run(running, lambda number: balancer.url, names)
    switches = ", ".join(
        f"{times} x {gateway}" for gateway, times in balancer.switches().items() if times
    )
    return f"{table}\n{balancer.name} turned away from: {switches or 'no gateway'}\n"


def run(running: Cluster, endpoint: Endpoint, names: Sequence[str]) -> str:
    answers = Answers(running)
    rows: list[tuple[str, ...]] = []
    for name in tqdm(names):
        scenario = (SCENARIOS | OF_DOUBLE_ROLES)[name]
        before = answers.of_now(scenario.clients)
        outcome = observe(running, scenario.event(running), endpoint, scenario.clients)
        differences = outcome.differences(before, answers.of_now(scenario.clients))
        rows.append((name, *_figures(outcome, len(differences))))
        met = ", ".join(f"{number} x {part}" for part, number in sorted(outcome.parts_met.items()))
        tqdm.write(f"{name} met {met}", file=sys.stderr)
        for told in (*outcome.failures, *differences, " | ".join(rows[-1])):
            tqdm.write(told, file=sys.stderr)
    return markdown_table(COLUMNS, rows) + "\n"


def _figures(outcome: Outcome, num_differences: int) -> tuple[str, ...]:
    return (
        str(len(outcome.streams)),
        str(len(outcome.failures)),
        str(num_differences),
        f"{outcome.next_token_s:.1f}",
        f"{outcome.longest_silence_s:.1f}",
        f"{outcome.recovered_s:.0f}",
        ", ".join(map(str, outcome.alerts)) or "none",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in-front", choices=[*CONFIGURATIONS, NOTHING], default="haproxy")
    parser.add_argument("--only", metavar="NAME", action="append")
    parser.add_argument("--double-roles", action="store_true")
    return parser


if __name__ == "__main__":
    main()
