"""A fleet in simulated time: real routers, real schedulers and block pools, a model of the time.

Nothing sleeps and nothing is random: the same workload gives the same figures everywhere.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count

from backend_metal.engine.schedule.block_group import BlockGroup
from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.engine.schedule.scheduler import Scheduler
from backend_metal.engine.schedule.sequence import Sequence as EngineSequence
from backend_metal.engine.schedule.step import Step
from backend_metal.engine.schedule.step_pace import StepPace
from deployments.backend import SamplingParams
from deployments.fleet.directory import Replica, ReplicaDirectory
from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.suspect import Suspect
from deployments.gateway.replicas.table import ReplicaTable
from deployments.gateway.routing import Router, Work
from deployments.gateway.routing.affinity import prefix_affinity
from deployments.settings import RoutingSettings

STEP_S = 0.010
"""Of a step with nothing in it, which is the time to read the weights."""
TOKEN_S = 0.0005
BLOCK_SIZE = 16
MODEL = "simulated"
LOAD_HALF_LIFE_S = RoutingSettings().load_half_life_s


@dataclass(frozen=True)
class Request:
    at: float
    """Seconds after the start."""
    gateway: int
    prompt: tuple[int, ...]
    output_tokens: int

    def work(self) -> Work:
        return Work(
            model=MODEL,
            tokens=len(self.prompt) + self.output_tokens,
            prompt_tokens=len(self.prompt),
            affinity=prefix_affinity([array("i", self.prompt).tobytes()]),
        )


@dataclass
class _Running:
    request: Request
    work: Work
    state: ReplicaState
    attempt: ExitStack
    sequence: EngineSequence
    first_token_at: float = 0.0


@dataclass
class Host:
    """A replica: ``speed`` divides the time of its steps."""

    replica: Replica
    scheduler: Scheduler
    speed: float = 1.0
    running: dict[EngineSequence, _Running] = field(default_factory=dict)
    step: Step | None = None
    routed_tokens: int = 0
    """Prompt and output of everything it was sent."""
    computed_tokens: int = 0
    busy_s: float = 0.0

    def step_seconds(self, step: Step) -> float:
        return (STEP_S + TOKEN_S * step.num_tokens) / self.speed


@dataclass(frozen=True)
class Outcome:
    hit_tokens: int
    routed_tokens: tuple[int, ...]
    speeds: tuple[float, ...]
    busy_s: tuple[float, ...]
    ttft_s: tuple[float, ...]
    e2e_s: tuple[float, ...]
    preemptions: int

    @property
    def imbalance(self) -> float:
        """The most loaded replica over the mean, in tokens sent there for each unit of speed."""
        most = max(
            tokens / speed for tokens, speed in zip(self.routed_tokens, self.speeds, strict=True)
        )
        return most / (sum(self.routed_tokens) / sum(self.speeds))


class Clock:
    """The simulation's time, which routers read too."""

    time = 0.0

    def __call__(self) -> float:
        return self.time


def make_hosts(speeds: Sequence[float], *, cache_tokens: int) -> list[Host]:
    """``cache_tokens`` for each unit of speed: faster machines have more memory too."""
    return [
        Host(
            Replica(f"replica-{index}", "node", "http://replica", MODEL, 4096, "-"),
            Scheduler(
                (BlockGroup(BlockPool(int(speed * cache_tokens) // BLOCK_SIZE), BLOCK_SIZE),),
                max_num_seqs=32,
                max_num_batched_tokens=512,
                pace=StepPace(),
            ),
            speed,
        )
        for index, speed in enumerate(speeds)
    ]


class Fleet:
    """``hosts`` behind gateways that each have a router of their own."""

    def __init__(
        self,
        hosts: Sequence[Host],
        make_router: Callable[[], Router],
        num_gateways: int,
        timed: Callable[[Callable[[], ReplicaState]], ReplicaState] = lambda decide: decide(),
    ) -> None:
        """``timed`` runs each decision."""
        self._hosts = {host.replica.replica_id: host for host in hosts}
        self._clock = Clock()
        directory = ReplicaDirectory([host.replica for host in hosts])
        self._routers = [make_router() for _ in range(num_gateways)]
        self.tables = [
            ReplicaTable(directory, load_half_life_s=LOAD_HALF_LIFE_S, now=self._clock)
            for _ in range(num_gateways)
        ]
        """One a gateway."""
        self._timed = timed
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._ttft_s: list[float] = []
        self._e2e_s: list[float] = []

    def run(self, requests: Sequence[Request]) -> Outcome:
        for request in requests:
            self._at(request.at, lambda request=request: self._arrive(request))  # type: ignore[misc]
        while self._events:
            self._clock.time, _, event = heapq.heappop(self._events)
            event()
        hosts = list(self._hosts.values())
        return Outcome(
            hit_tokens=sum(host.scheduler.num_prefix_hit_tokens for host in hosts),
            routed_tokens=tuple(host.routed_tokens for host in hosts),
            speeds=tuple(host.speed for host in hosts),
            busy_s=tuple(host.busy_s for host in hosts),
            ttft_s=tuple(sorted(self._ttft_s)),
            e2e_s=tuple(sorted(self._e2e_s)),
            preemptions=sum(host.scheduler.num_preemptions for host in hosts),
        )

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _arrive(self, request: Request) -> None:
        router, table = self._routers[request.gateway], self.tables[request.gateway]
        candidates = table.serving(MODEL)
        chosen = self._timed(lambda: router.choose(request.work(), candidates))
        work = request.work()
        work = replace(work, cached_tokens=router.placed(work, chosen).cached_tokens)
        attempt = ExitStack()
        attempt.enter_context(table.attempt(work, Suspect(), chosen))
        host = self._hosts[chosen.replica_id]
        host.routed_tokens += work.tokens
        sequence = EngineSequence(
            str(next(self._order)),
            0,
            request.prompt,
            SamplingParams(),
            max_tokens=request.output_tokens,
            seed=0,
            arrival=next(self._order),
        )
        host.running[sequence] = _Running(request, work, chosen, attempt, sequence)
        host.scheduler.add(sequence)
        if host.step is None:
            self._start_step(host)

    def _start_step(self, host: Host) -> None:
        host.step = host.scheduler.schedule()
        host.scheduler.draw(host.step)
        seconds = host.step_seconds(host.step)
        host.busy_s += seconds
        self._at(self._clock.time + seconds, lambda: self._end_step(host))

    def _end_step(self, host: Host) -> None:
        assert host.step is not None
        for item in host.step.scheduled:
            sequence = item.sequence
            # Any token will do: no two sequences' outputs are ever looked for in a cache.
            if item.draws:
                sequence.learn(1)
            if sequence.num_output_tokens and not host.running[sequence].first_token_at:
                self._first_token(host.running[sequence])
            if sequence.num_output_tokens >= sequence.max_tokens:
                host.scheduler.finish(sequence)
                self._finish(host.running.pop(sequence))
        host.computed_tokens += host.step.num_tokens
        host.step = None
        if host.scheduler.has_work:
            self._start_step(host)

    def _first_token(self, one: _Running) -> None:
        one.first_token_at = self._clock.time
        self._ttft_s.append(self._clock.time - one.request.at)

    def _finish(self, one: _Running) -> None:
        now = self._clock.time
        self._e2e_s.append(now - one.request.at)
        one.state.streamed(one.work, one.request.output_tokens - 1, now - one.first_token_at)
        one.attempt.close()


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
