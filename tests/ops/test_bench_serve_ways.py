"""Benchmarks that start a server of their own: how tokens are drawn, and a step's token budget."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ops.bench.engine import random_model  # isort: skip
import mlx.core as mx

from ops.bench.engine.shapes import SHAPES, Shape
from ops.bench.engine.workload import Workload
from ops.bench.serve import Answer, Load, Result, Target, Usage, budget, drawn
from ops.bench.serve.beside import Beside
from ops.bench.serve.errors import LoadError
from ops.bench.serve.target import Sampling
from ops.bench.serve.writing import TokenWriter
from tests.support.ops.scripted_openai import ScriptedServer, scripted

pytestmark = pytest.mark.serve

TINY = Shape(
    {
        **random_model.CONFIG,
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "vocab_size": 512,
    },
    mx.float32,
    Workload(shortest=4, longest=8, output_tokens=4),
)


def answer(first: float, *gaps: float) -> Answer:
    times = [first]
    for gap in gaps:
        times.append(times[-1] + gap)
    return Answer(0, 0, 0.0, 0.0, times[-1], 200, times=tuple(times), usage=Usage(8, len(times)))


def result(*answers: Answer) -> Result:
    return Result(Target("http://host", "m"), Load([]), answers, (), 0.0, 0.0)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY)


def test_ways_are_held_against_each_other_round_by_round() -> None:
    # 2 tokens in 1 s and 2 s; a half of each as fast.
    results = {
        drawn.GREEDY: [result(answer(0.5, 0.5)), result(answer(1.0, 1.0))],
        drawn.DRAWN: [result(answer(1.0, 1.0)), result(answer(2.0, 2.0))],
    }
    assert drawn.report(results).splitlines()[2:] == [
        "| greedy | 1.5 | 100% | 750.0 | 995.0 | 750.0 | 995.0 |",
        "| drawn | 0.8 | 50% | 1500.0 | 1990.0 | 1500.0 | 1990.0 |",
    ]


async def test_ways_take_turns_with_prompts_that_are_all_different() -> None:
    server = ScriptedServer()
    async with scripted(server) as target, asyncio.timeout(120):
        results = await drawn.measure(
            target, TokenWriter(500), streams=2, input_len=20, output_len=4, rounds=2
        )
    bodies = [one.body for one in server.exchanges]
    assert len(bodies) == len({str(body["prompt"]) for body in bodies}) == 2 * 2 * 2 * 2
    measured = [body["temperature"] for body in bodies if body["max_tokens"] == 4]
    assert measured == [0.0] * 2 + [1.0] * 4 + [0.0] * 2
    assert [len(results[way]) for way in drawn.WAYS] == [2, 2]
    penalties = {body.get("presence_penalty") for body in bodies if body["temperature"]}
    assert penalties == {drawn.WAYS[drawn.DRAWN].presence_penalty}
    assert drawn.WAYS[drawn.GREEDY] == Sampling()


async def test_an_answer_that_fails_ends_it() -> None:
    async with scripted(ScriptedServer(wrong="too_short", wrong_every=3)) as target:
        with pytest.raises(LoadError):
            await drawn.measure(
                target, TokenWriter(500), streams=2, input_len=8, output_len=4, rounds=1
            )


@pytest.mark.usefixtures("tiny")
@pytest.mark.exhaustive
def test_drawn_starts_a_server_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--streams", "2", "--input-len", "4", "--output-len", "4", "--rounds", "1"]
    assert drawn.main(["--shape", "tiny", *few]) == 0
    assert "| drawn |" in capsys.readouterr().out


def measured(tokens: int, gap: float, first: float) -> budget.Measured:
    beside = Beside(
        [answer(first, 0.1)],
        [answer(first / 2, 0.1)],
        [answer(2 * first, 0.1)],
        [0.1, 0.1],
        [gap, gap],
    )
    return budget.Measured(tokens, beside, result(answer(1.0, 1.0)))


def test_a_table_and_a_chart_of_budgets() -> None:
    both = [measured(64, 0.15, 4.0), measured(512, 0.4, 2.0)]
    assert budget.report(both).splitlines()[2:] == [
        "| 64 | 100 | 150 | 50 | 2000 | 4000 | 8000 | 2.00 | 1 | 1.0 | 5 |",
        "| 512 | 100 | 400 | 300 | 1000 | 2000 | 4000 | 2.00 | 1 | 1.0 | 5 |",
    ]
    drawing = budget.chart(both)
    assert drawing.count('r="3"') == 2
    assert all(f">{tokens}<" in drawing for tokens in (64, 512))


@pytest.mark.usefixtures("tiny")
async def test_each_budget_has_a_server_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    few = ["--streams", "2", "--output-len", "150", "--prompts", "1", "--prompt-len", "48"]
    async with scripted(ScriptedServer(step_s=0.01)) as target:

        @contextmanager
        def served(model: str, *, streams: int, context: int, budget: int) -> Iterator[Target]:
            asked.append((streams, budget))
            yield target

        monkeypatch.setattr(budget, "served", served)
        options = ["--shape", "tiny", "--budgets", "16", "64", "--out", str(tmp_path)]
        assert await asyncio.to_thread(budget.main, [*options, *few]) == 0
    # With a place for the long prompt.
    assert asked == [(3, 16), (3, 64)]
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == ["16", "64"]
    assert (tmp_path / budget.CHART).read_text().startswith("<svg")
