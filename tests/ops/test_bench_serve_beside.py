"""What a long prompt costs the streams beside it, of known answers and of a scripted server."""

from __future__ import annotations

import asyncio

import pytest

from ops.bench.serve import Answer, Load, Result, Target
from ops.bench.serve.beside import main, measure, told_apart
from ops.bench.serve.errors import LoadError
from ops.bench.serve.writing import TokenWriter
from tests.support.ops.scripted_openai import ScriptedServer, scripted


def answer(sent: float, *times: float, faults: tuple[str, ...] = ()) -> Answer:
    return Answer(0, 0, sent, sent, times[-1], 200, times=times, faults=faults)


def result(*answers: Answer) -> Result:
    return Result(Target("http://host", "m"), Load([]), answers, (), 0.0, 0.0)


ALONE = result(answer(0.0, 0.2, 0.21), answer(1.0, 1.4, 1.41))
SHORTER = result(answer(0.0, 0.15, 0.16), answer(1.0, 1.25, 1.26))
# All decode from 10.1 to 10.9; a prompt comes at 10.35 and has its token at 10.55.
STREAMS = result(
    answer(10.0, 10.0, 10.1, 10.2, 10.3, 10.6, 10.7, 10.9, 11.2),
    answer(10.0, 10.1, 10.2, 10.3, 10.6, 10.7, 10.9),
)
PROMPTS = result(answer(10.35, 10.55, 10.6), answer(10.95, 11.5, 11.6))


def test_gaps_are_beside_a_prompt_or_not() -> None:
    found = told_apart(ALONE, SHORTER, STREAMS, PROMPTS)
    assert found.gaps_beside == pytest.approx([0.3, 0.3])
    assert found.gaps_alone == pytest.approx([0.1, 0.1, 0.1, 0.2] * 2)
    # The second came when a stream had ended.
    assert list(found.prompts_beside) == [PROMPTS.answers[0]]


def test_the_table() -> None:
    assert told_apart(ALONE, SHORTER, STREAMS, PROMPTS).report().splitlines() == [
        "| ms | alone | beside each other | times |",
        "| --- | ---: | ---: | ---: |",
        "| ITL, median | 100.0 | 300.0 | 3.00 |",
        "| ITL, P99 | 200.0 | 300.0 | 1.50 |",
        "| TTFT of a prompt, median | 300.0 | 200.0 | 0.67 |",
        "| its last chunk | 100.0 |  |  |",
        "",
        "1 prompts came beside 2 gaps.",
    ]


def test_a_prompt_that_is_one_chunk_takes_as_long_as_that() -> None:
    assert told_apart(ALONE, None, STREAMS, PROMPTS).chunk_s == pytest.approx(0.3)


def test_prompts_that_came_too_late_are_told() -> None:
    with pytest.raises(LoadError, match="give them more tokens"):
        told_apart(ALONE, None, STREAMS, result(PROMPTS.answers[1]))


def test_a_failure_ends_it() -> None:
    with pytest.raises(LoadError, match="it broke"):
        told_apart(ALONE, SHORTER, STREAMS, result(answer(1.0, 1.0, faults=("it broke",))))


async def test_prompts_come_one_by_one_beside_streams() -> None:
    server = ScriptedServer(step_s=0.01)
    async with scripted(server) as target, asyncio.timeout(120):
        found = await measure(
            target,
            TokenWriter(500),
            streams=3,
            output_len=200,
            prompts=2,
            prompt_len=400,
            chunk=100,
        )
    assert len(found.prompts_alone) == 2
    assert len(found.prompts_beside) >= 1
    sizes = [len(exchange.body["prompt"]) for exchange in server.exchanges]
    assert sizes[:5] == [400] * 3 + [300] * 2
    assert sorted(sizes[5:]) == [32] * 3 + [400] * 2
    # None that a prefix cache would know.
    assert len({str(exchange.body["prompt"]) for exchange in server.exchanges}) == 10


async def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--streams", "2", "--output-len", "200", "--prompts", "1", "--prompt-len", "40"]
    async with scripted(ScriptedServer(step_s=0.01)) as target:
        assert await asyncio.to_thread(main, ["--url", target.url, *few]) == 0
    assert "| TTFT of a prompt, median |" in capsys.readouterr().out


def test_the_command_where_nobody_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:1"]) == 2
    assert "no models at" in capsys.readouterr().err
