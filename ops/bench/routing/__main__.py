"""Prefix affinity against the least loaded replica: hits, balance and latency of a simulated fleet.

``python -m ops.bench.routing`` prints the tables. Times are the simulation's; only the time that a
gateway takes to decide is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.routing import LeastOutstandingTokens, PrefixAffinity, Router
from deployments.settings import RoutingSettings
from ops.bench.routing.fleet import Fleet, Outcome, make_hosts, percentile
from ops.bench.routing.shared_prefixes import SharedPrefixes
from ops.bench.timing import markdown_table

MakeRouter = Callable[[], Router]
CACHE_TOKENS = 12_288
EQUALS = (1.0, 1.0, 1.0, 1.0)
MIXED = (1.0, 1.0, 2.0, 4.0)
SHARED = SharedPrefixes()
HOT = replace(SHARED, hot_share=0.8, requests_per_second=24.0)
BUSY = replace(SHARED, repeats=40, requests_per_second=48.0)


def affinity(**settings: float | bool) -> MakeRouter:
    parsed = RoutingSettings.model_validate(settings)
    return lambda: PrefixAffinity(parsed)


@dataclass(frozen=True)
class Contender:
    name: str
    make_router: MakeRouter


SCENARIOS = (
    (
        "40 prefixes of 512 tokens x 10 requests, 4 replicas, 2 gateways",
        SHARED,
        EQUALS,
        (
            Contender("prefix affinity", affinity()),
            Contender("least outstanding tokens", LeastOutstandingTokens),
        ),
    ),
    (
        "The same, 4 of 5 requests with one hot prefix",
        HOT,
        EQUALS,
        (
            Contender("prefix affinity", affinity()),
            Contender("prefix affinity without a bound", affinity(load_bound=1e9)),
            Contender("least outstanding tokens", LeastOutstandingTokens),
        ),
    ),
    (
        "40 prefixes x 40 requests, replicas of speed and memory 1, 1, 2 and 4",
        BUSY,
        MIXED,
        (
            Contender("prefix affinity", affinity()),
            Contender("prefix affinity without weights", affinity(weigh_capacity=False)),
            Contender("least outstanding tokens", LeastOutstandingTokens),
        ),
    ),
)


class Stopwatch:
    """Processor time of each decision: others on the machine are not the router's doing."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def __call__(self, decide: Callable[[], ReplicaState]) -> ReplicaState:
        start = time.thread_time()
        chosen = decide()
        self._seconds.append(time.thread_time() - start)
        return chosen

    def percentile(self, share: float) -> float:
        return percentile(sorted(self._seconds), share)


def simulate(
    workload: SharedPrefixes,
    speeds: Sequence[float],
    make_router: MakeRouter,
    timed: Callable[[Callable[[], ReplicaState]], ReplicaState] = lambda decide: decide(),
) -> Outcome:
    hosts = make_hosts(speeds, cache_tokens=CACHE_TOKENS)
    return Fleet(hosts, make_router, workload.num_gateways, timed).run(workload.requests())


def rows(
    workload: SharedPrefixes, speeds: Sequence[float], contenders: Sequence[Contender]
) -> list[list[str]]:
    table = []
    for contender in contenders:
        stopwatch = Stopwatch()
        outcome = simulate(workload, speeds, contender.make_router, stopwatch)
        table.append(
            [
                contender.name,
                f"{outcome.hit_tokens:,}",
                f"{outcome.hit_tokens / workload.ideal_hit_tokens:.0%}",
                f"{outcome.imbalance:.2f}",
                f"{percentile(outcome.ttft_s, 0.5) * 1e3:.0f}",
                f"{percentile(outcome.ttft_s, 0.99) * 1e3:.0f}",
                f"{percentile(outcome.e2e_s, 0.99):.1f}",
                f"{stopwatch.percentile(0.5) * 1e6:.0f}",
                f"{stopwatch.percentile(0.99) * 1e6:.0f}",
            ]
        )
    return table


COLUMNS = (
    "policy",
    "hit tokens",
    "of the ideal",
    "most loaded / mean",
    "TTFT p50, ms",
    "TTFT p99, ms",
    "end to end p99, s",
    "decision p50, us",
    "decision p99, us",
)


def report() -> str:
    return "\n\n".join(
        f"{title}\n\n{markdown_table(COLUMNS, rows(workload, speeds, contenders))}"
        for title, workload, speeds, contenders in SCENARIOS
    )


if __name__ == "__main__":
    print(report())
