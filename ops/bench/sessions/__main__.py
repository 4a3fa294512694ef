"""What is computed of the prompts of agents' sessions, against the ideal.

``python -m ops.bench.sessions [FOLDER] [--tokenizer FOLDER] [--replicas N] [--answer-s S]``

Replays the recordings in ``FOLDER``, which ``python -m ops.bench.sessions.record`` makes, or two
made-up ones in each of two places, through a gateway to replicas that have a prefix cache each, and
tells how many tokens of prompts were computed under each way to route. The ideal is a fleet that
computes each token once, as far as the chat template lets prompts begin alike.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from tqdm import tqdm

from deployments.gateway.routing import LeastOutstandingTokens, Router, build_router
from deployments.settings import RoutingSettings
from ops.bench.sessions import tiny_model
from ops.bench.sessions.fleet import BLOCK_SIZE, Replicas, fleet, replicas
from ops.bench.sessions.ideal import ideal_tokens
from ops.bench.sessions.recording import RecordedRequest, Recording, load
from ops.bench.sessions.replay import CLIENT_TIMEOUT_S, Replay, without_marks
from ops.bench.sessions.routers import ByLot, RoundRobin
from ops.bench.sessions.synthetic import synthetic
from ops.bench.timing import markdown_table

REPOSITORY = Path(__file__).resolve().parents[3]
DEMO = REPOSITORY / "backend_metal" / "models" / "demo"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


@dataclass(frozen=True)
class Contender:
    name: str
    make_router: Callable[[], Router]
    rewritten: Callable[[RecordedRequest], RecordedRequest] = lambda request: request
    """What its clients send in place of what was recorded."""


def shipped() -> Router:
    return build_router(RoutingSettings())


CONTENDERS = (
    Contender("prefix affinity", shipped),
    Contender("prefix affinity, clients' marks unknown", shipped, without_marks),
    Contender("least outstanding tokens", LeastOutstandingTokens),
    Contender("round robin", RoundRobin),
    Contender("by lot", ByLot),
)


@dataclass(frozen=True)
class Measured:
    name: str
    prompt_tokens: int
    computed_tokens: int
    ideal_tokens: int
    placed_elsewhere: int
    """Requests whose prompt the gateway knew, at other replicas than theirs."""
    found_nothing: int
    """Requests of whose prompt nothing was cached where they came."""

    @property
    def times_ideal(self) -> float:
        return self.computed_tokens / self.ideal_tokens


async def measure(
    contender: Contender, recording: Recording, behind: Replicas, answer_s: float
) -> Measured:
    sent = {
        place: [[contender.rewritten(one) for one in session] for session in sessions]
        for place, sessions in recording.items()
    }
    async with (
        fleet(behind, contender.make_router()) as running,
        httpx.AsyncClient(timeout=CLIENT_TIMEOUT_S) as client,
    ):
        await Replay(running, client, answer_s).run(sent)
        return Measured(
            contender.name,
            running.prompt_tokens,
            running.computed_tokens,
            ideal_tokens(running.held.prompts, BLOCK_SIZE),
            running.placements("elsewhere"),
            running.held.found_nothing,
        )


def report(measured: Sequence[Measured]) -> str:
    """``measured[0]`` had the requests as they were recorded: its ideal is everybody's."""
    ideal = measured[0]
    rows = [("the ideal", f"{ideal.prompt_tokens:,}", f"{ideal.ideal_tokens:,}", "1.00", "", "")]
    rows += [
        (
            one.name,
            f"{one.prompt_tokens:,}",
            f"{one.computed_tokens:,}",
            f"{one.computed_tokens / ideal.ideal_tokens:.2f}",
            str(one.placed_elsewhere),
            str(one.found_nothing),
        )
        for one in measured
    ]
    columns = ("routing", "prompt tokens", "computed", "times the ideal", "sent elsewhere")
    return markdown_table((*columns, "nothing cached"), rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.sessions")
    parser.add_argument("folder", type=Path, nargs="?", help="of recordings")
    parser.add_argument("--tokenizer", type=Path, help="a model's folder, with its chat template")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--cache-tokens", type=int, default=131_072, help="of one replica")
    parser.add_argument("--answer-s", type=float, default=5.0, help="what an answer takes")
    return parser.parse_args()


async def compare(options: argparse.Namespace) -> list[Measured]:
    recording = load(options.folder) if options.folder else synthetic()
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory)
        template = None if options.tokenizer else TEMPLATE.read_text()
        tiny_model.save(model, options.tokenizer or DEMO, template)
        async with replicas(model, options.replicas, cache_tokens=options.cache_tokens) as behind:
            return [
                await measure(contender, recording, behind, options.answer_s)
                for contender in tqdm(CONTENDERS, desc="contenders")
            ]


def main() -> None:
    sys.stdout.write(f"{report(asyncio.run(compare(_options())))}\n")


if __name__ == "__main__":
    main()
