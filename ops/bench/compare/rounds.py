"""Whose turn it is: each round starts every server afresh and puts each load on it."""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from tqdm import tqdm

from ops.bench.compare.model import Precision, Weights
from ops.bench.compare.peers import HOST, Job, Peer, free_port
from ops.bench.compare.results import Failure, Results, Start, Trial
from ops.bench.compare.server import Running, running
from ops.bench.serve import Conversation, Load, Result, Sampling, Server, Target, run_load
from ops.bench.serve.lengths import Fixed, Lengths, Uniform
from ops.bench.serve.workload import Requests
from ops.bench.serve.writing import Writer

ANYBODY = Server("anybody")
"""All are sent the same fields, OpenAI's own."""
LEAST_REQUESTS = 6
SAID_BY_ALL = 24
"""Tokens of the answers to prompts that every server gets."""


@dataclass(frozen=True)
class Plan:
    """``programs`` are the peers' own."""

    programs: Mapping[Peer, Path]
    weights: Sequence[Weights]
    writer: Writer
    at_once: Sequence[int] = (1, 8, 16, 32)
    rounds: int = 3
    requests_each: int = 2
    """As many times as there are at once."""
    input_tokens: Uniform = field(default_factory=lambda: Uniform(32, 256))
    output_tokens: int = 64
    threads: int | None = None
    """That multiply, of each server."""
    patience_s: float = 60.0
    """For ``said_by_all``. Whoever takes longer would take hours for the loads."""

    @property
    def context(self) -> int:
        """Of the longest request; what a word is too long by included."""
        return self.input_tokens.longest + self.output_tokens + 64

    def turns(self) -> Iterator[tuple[int, Weights, Peer]]:
        """Who is before whom changes from round to round."""
        for number in range(self.rounds):
            peers = deque(self.programs)
            peers.rotate(number)
            for weights in self.weights:
                for peer in peers:
                    yield number, weights, peer

    def said_by_all(self) -> Load:
        """A few greedy answers, one after another, the same from a server to the next."""
        return Load(
            self._conversations(4, self.input_tokens, SAID_BY_ALL, seed=0),
            concurrency=1,
            sampling=Sampling(ignore_eos=False),
        )

    def load(self, number: int, at_once: int, count: int | None = None) -> Load:
        """With prompts that are new to every server, and the same for all; ``count`` of them, or as
        the plan has it."""
        seed = 1000 * (number + 1) + at_once
        count = count or max(LEAST_REQUESTS, self.requests_each * at_once)
        return Load(
            self._conversations(count, self.input_tokens, self.output_tokens, seed),
            concurrency=at_once,
            sampling=Sampling(ignore_eos=False),
            warm_up=self._conversations(at_once, Fixed(8), 8, seed + 500),
        )

    def _conversations(
        self, count: int, input_tokens: Lengths, output_tokens: int, seed: int
    ) -> list[Conversation]:
        requests = Requests(input_tokens, Fixed(output_tokens))
        return requests.conversations(count, self.writer, seed)


def measure(plan: Plan, folder: Path, keep: Callable[[Results], None]) -> Results:
    """``keep`` gets what there is so far whenever a server is done; ``folder`` is for their logs.

    A server that does not start, breaks, or is too slow is noted, and has no more turns in that
    precision."""
    results = Results()
    failed: set[tuple[str, Precision]] = set()
    turns = list(plan.turns())
    with tqdm(total=len(turns) * len(plan.at_once), unit="load") as progress:
        for done, (number, weights, peer) in enumerate(turns, start=1):
            server = peer.name, weights.precision
            progress.set_description(f"round {number + 1}, {weights.precision}, {peer.name}")
            log = folder / f"{number + 1}-{weights.precision}-{peer.name}.log"
            try:
                if server not in failed:
                    for measured in _turn(plan, number, weights, peer, log, results.starts.append):
                        results.trials.append(measured)
                        progress.update()
            except (RuntimeError, OSError) as error:
                failed.add(server)
                results.failures.append(Failure(*server, number, str(error)))
                progress.write(f"{peer.name}, {weights.precision}: {error}")
            progress.update(done * len(plan.at_once) - progress.n)
            keep(results)
    return results


def _turn(
    plan: Plan,
    number: int,
    weights: Weights,
    peer: Peer,
    log: Path,
    on_start: Callable[[Start], None],
) -> Iterator[Trial]:
    with serving(plan, weights, peer, log) as (server, target):
        said = answered(target, plan.said_by_all(), plan.patience_s)
        on_start(
            Start(
                peer.name,
                weights.precision,
                number,
                server.started_s,
                server.memory_bytes(),
                # Some leave out the blank that an answer begins with.
                tuple(one.text.strip() for one in said.answers),
            )
        )
        for at_once in plan.at_once:
            result = answered(target, plan.load(number, at_once))
            yield trial(result, peer, weights, number, at_once, plan.output_tokens)


@contextmanager
def serving(
    plan: Plan, weights: Weights, peer: Peer, log: Path
) -> Iterator[tuple[Running, Target]]:
    """A fresh server of ``peer`` for as long as the block runs. Raises ``StartError``."""
    with tempfile.TemporaryDirectory(prefix="pomona-", dir="/tmp") as folder:
        port = free_port()
        job = Job(weights, port, max(plan.at_once), plan.context, Path(folder), plan.threads)
        launch = peer.launch(plan.programs[peer], job)
        target = Target(f"http://{HOST}:{port}", launch.model, "completions", ANYBODY)
        with running(launch, target.url, log) as server:
            yield server, target


def answered(target: Target, load: Load, patience_s: float | None = None) -> Result:
    """Raises ``RuntimeError`` if no request of ``load`` was, or it takes longer than that."""

    async def run() -> Result:
        async with asyncio.timeout(patience_s):
            return await run_load(target, load)

    try:
        result = uvloop.run(run())
    except TimeoutError:
        num_tokens = load.conversations[0].turns[0].max_tokens
        raise RuntimeError(
            f"too slow: {load.num_requests} answers of {num_tokens} tokens, one after another, "
            f"took more than {patience_s:g} s"
        ) from None
    if not result.good:
        raise RuntimeError("no request was answered: " + "; ".join(result.faults[:3]))
    return result


def trial(
    result: Result, peer: Peer, weights: Weights, number: int, at_once: int, output_tokens: int
) -> Trial:
    return Trial(
        peer=peer.name,
        precision=weights.precision,
        round=number,
        at_once=at_once,
        output_tokens_per_second=result.output_tokens_per_second,
        time_to_first_token=result.time_to_first_token.median,
        time_per_output_token=result.time_per_output_token.median,
        latency=result.latency.median,
        failed=result.num_failed + sum(one.num_tokens != output_tokens for one in result.good),
    )
