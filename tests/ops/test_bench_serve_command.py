"""The command, its workloads, and what it makes of a server's own figures."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.backend import EngineConfig
from ops.bench.overload.servers import engine_and_gateway
from ops.bench.serve import (
    Answer,
    Conversation,
    Load,
    Result,
    Target,
    Turn,
    Usage,
    metrics,
    run_load,
)
from ops.bench.serve.__main__ import find_target, main, planned
from ops.bench.serve.agreement import agreement_table, figures
from ops.bench.serve.errors import LoadError
from ops.bench.serve.lengths import (
    SHAREGPT_INPUT,
    SHAREGPT_OUTPUT,
    Fixed,
    LogNormal,
    Uniform,
    parse_lengths,
)
from ops.bench.serve.metrics import find_metrics
from ops.bench.serve.options import parser
from ops.bench.serve.workload import MESSAGE_TOKENS, Agents, Requests
from ops.bench.serve.writing import TokenWriter, WordWriter
from tests.support.ops.scripted_openai import ScriptedServer, scripted

TOKENS = TokenWriter(1000)


def options(*arguments: str) -> Any:
    return parser(None).parse_args(arguments)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("7", Fixed(7)),
        ("3-9", Uniform(3, 9)),
        ("lognormal:50:0.5:200", LogNormal(50, 0.5, 200)),
        ("sharegpt", SHAREGPT_INPUT),
    ],
)
def test_lengths_are_read(text: str, lengths: object) -> None:
    assert parse_lengths(text, SHAREGPT_INPUT) == lengths


@pytest.mark.parametrize("text", ["0", "-3", "9-3", "0-4", "lognormal:5:1", "lognormal:0:1:9", "x"])
def test_lengths_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_lengths(text, SHAREGPT_INPUT)


def test_lengths_have_their_distribution() -> None:
    dice = np.random.default_rng(0)
    assert {Uniform(3, 5).draw(dice) for _ in range(200)} == {3, 4, 5}
    drawn = [LogNormal(100, 0.5, 10_000).draw(dice) for _ in range(20_000)]
    assert np.median(drawn) == pytest.approx(100, rel=0.03)
    assert np.std(np.log(drawn)) == pytest.approx(0.5, rel=0.03)
    assert max(LogNormal(100, 2.0, 150).draw(dice) for _ in range(500)) == 150
    assert min(LogNormal(1, 2.0, 150).draw(dice) for _ in range(500)) == 1


def test_sharegpts_lengths_are_those_of_others_benchmarks() -> None:
    dice = np.random.default_rng(0)
    means = [
        np.mean([lengths.draw(dice) for _ in range(50_000)])
        for lengths in (SHAREGPT_INPUT, SHAREGPT_OUTPUT)
    ]
    assert means == pytest.approx([217, 200], rel=0.03)


def test_texts_have_as_many_tokens_as_were_asked_for() -> None:
    dice = np.random.default_rng(0)
    assert len(TOKENS.write(77, dice)) == 77
    assert max(map(int, TOKENS.write(5000, dice))) == 999
    words = WordWriter().write(3000, dice)
    assert isinstance(words, str)
    assert len(words.split()) == 3000
    # Of a tokenizer that reads letters: up to the end of a word.
    letters = WordWriter(len).write(300, dice)
    assert 300 <= len(letters) < 310
    assert WordWriter().write(0, dice) == ""


def test_requests_are_the_same_with_the_same_seed() -> None:
    workload = Requests(Uniform(5, 20), Fixed(3))
    one, again, other = (workload.conversations(30, TOKENS, seed) for seed in (1, 1, 2))
    assert one == again
    assert not {*one} & {*other}
    assert {len(each.turns) for each in one} == {1}
    lengths = [len(each.turns[0].added) for each in one]
    assert (min(lengths) >= 5, max(lengths) <= 20, len({*lengths}) > 5) == (True, True, True)


def test_prefixes_are_shared_and_no_more() -> None:
    workload = Requests(Fixed(8), Fixed(3), num_prefixes=4, prefix_tokens=32)
    conversations = workload.conversations(200, TOKENS, 0)
    prefixes = {each.system for each in conversations}
    assert len(prefixes) == 4
    assert {len(prefix) for prefix in prefixes} == {32}
    assert len({each.turns[0].added for each in conversations}) == 200
    # Those that warm up a server warm up its prefixes, too.
    assert {each.system for each in workload.conversations(200, TOKENS, 1)} == prefixes


def test_agents_grow_until_their_contexts_are_full() -> None:
    agents = Agents(grow_to=4000, system_tokens=500, input_tokens=Uniform(50, 150), pause_s=0.5)
    conversations = agents.conversations(40, TOKENS, 0)
    assert len({each.system for each in conversations}) == 1
    for each in conversations:
        size = 500 + sum(len(turn.added) + turn.max_tokens for turn in each.turns)
        # Another turn would have been too many.
        assert 4000 - (150 + 1024) - 2 * MESSAGE_TOKENS * (len(each.turns) + 2) < size <= 4000
        assert each.turns[0].pause_s == 0
        assert len(each.turns) > 5
    pauses = [turn.pause_s for each in conversations for turn in each.turns[1:]]
    assert np.mean(pauses) == pytest.approx(0.5, rel=0.15)


def test_an_agent_has_a_turn_however_long_it_is() -> None:
    [agent] = Agents(grow_to=10, input_tokens=Fixed(20)).conversations(1, TOKENS, 0)
    assert len(agent.turns) == 1


def test_options_make_a_load() -> None:
    load = planned(
        options(
            *(
                "--num-requests",
                "5",
                "--input-len",
                "9",
                "--output-len",
                "4",
                "--prompts",
                "tokens",
            ),
            *("--rate", "2.5", "--concurrency", "3", "--warm-up", "2", "--repeats", "1"),
            *("--top-p", "0.9", "--sampling-seed", "3", "--may-stop", "--extra", '{"a": 1}'),
        )
    )
    assert (load.rate, load.concurrency, load.repeats, load.num_requests) == (2.5, 3, 1, 5)
    assert [len(each.turns[0].added) for each in load.conversations] == [9] * 5
    assert len(load.warm_up) == 2
    assert not {*load.warm_up} & {*load.conversations}
    sampling = load.sampling
    assert (sampling.top_p, sampling.seed, sampling.ignore_eos) == (0.9, 3, False)
    assert sampling.extra == {"a": 1}


@pytest.mark.parametrize(
    "arguments",
    [["--rate", "0"], ["--concurrency", "0"], ["--input-len", "0"], ["--extra", "[]"]],
)
def test_options_that_mean_nothing_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        options(*arguments)


async def measured(server: ScriptedServer, **load: Any) -> Result:
    async with scripted(server) as target:
        urls = await find_metrics(target.url, target.model)
        conversations = [Conversation((Turn((1, 2, number), 5),)) for number in range(6)]
        warm_up = conversations[:2]
        target = replace(target, metrics_urls=urls)
        return await run_load(target, Load(conversations, warm_up=warm_up, **load))


async def test_a_servers_figures_are_those_that_were_measured() -> None:
    compared = figures(await measured(ScriptedServer(step_s=0.01)), tolerance=100.0)
    assert [(one.name, one.client, one.server) for one in compared[:3]] == [
        ("requests", 6, 6),
        ("input tokens", 18, 18),
        ("output tokens", 30, 30),
    ]
    names = {one.name: one for one in compared}
    assert {*names} > {"mean TTFT, engine", "mean TTFT, gateway", "mean ITL, engine"}
    assert names["mean TTFT, engine"].client >= names["mean TTFT, engine"].server >= 0.01
    assert names["mean ITL, engine"].server >= 0.01
    assert all(one.agrees for one in compared)
    assert "| output tokens | 30 | 30 | yes |" in agreement_table(compared)


async def test_a_server_that_miscounts_is_found_out() -> None:
    compared = figures(await measured(ScriptedServer(miscounted=1)), tolerance=100.0)
    assert [one.name for one in compared if not one.agrees] == ["output tokens"]
    assert "| output tokens | 30 | 36 | **no** |" in agreement_table(compared)


@pytest.mark.parametrize(
    ("counts", "disagrees"),
    [
        ({("engine", 0.30), ("gateway", 0.39)}, set()),
        # What an engine does not count of it, its gateway does.
        ({("engine", 0.05), ("gateway", 0.39)}, set()),
        ({("engine", 0.05), ("gateway", 0.30)}, {"gateway"}),
        ({("engine", 0.30)}, {"engine"}),
        ({("engine", 0.39)}, set()),
        # Longer than the client waited.
        ({("engine", 0.60), ("gateway", 0.39)}, {"engine"}),
        ({("engine", 0.39), ("gateway", 0.60)}, {"gateway"}),
        (set(), set()),
    ],
)
def test_a_server_that_mistakes_the_time_is_found_out(
    counts: set[tuple[str, float]], disagrees: set[str]
) -> None:
    """Of a client that waited for 0.4 s on average."""
    name = "pomona_time_to_first_token_seconds"
    answers = [
        Answer(number, 0, 0.0, 0.0, 1.0, 200, times=(first,), usage=Usage(1, 1))
        for number, first in enumerate((0.2, 0.6))
    ]
    known = {(f"{name}_count", stage): 2.0 for stage, _ in counts}
    known |= {(f"{name}_sum", stage): 2 * mean for stage, mean in counts}
    target = Target("http://host", "m")
    result = Result(target, Load([]), tuple(answers), (), 0.0, 0.0, known)
    compared = [one for one in figures(result, tolerance=0.1) if one.unit == "s"]
    assert {one.name.split(", ")[1] for one in compared if not one.agrees} == disagrees
    assert len(compared) == len(counts)


async def test_what_failed_is_not_compared_with() -> None:
    result = await measured(ScriptedServer("no_usage", wrong_every=5))
    compared = figures(result, tolerance=0.0)
    assert result.num_failed == 1
    # The server has counted the tokens of that one, too.
    assert [one.name for one in compared] == ["requests", "input tokens", "output tokens"]
    assert all(one.agrees for one in compared)


async def test_metrics_that_nobody_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SETTLE_S", 0.1)
    load = Load([Conversation((Turn("a", 2),))])
    async with scripted(ScriptedServer()) as target:
        with pytest.raises(LoadError, match="no metrics at http"):
            await run_load(replace(target, metrics_urls=("http://127.0.0.1:1/metrics",)), load)
        # They count another model's requests.
        target = replace(target, metrics_urls=(f"{target.url}/metrics",))
        result = await run_load(replace(target, model="x"), load)
    assert [one.agrees for one in figures(result, 0.1)] == [False] * 3


async def test_a_server_that_has_no_metrics_is_compared_with_nothing() -> None:
    assert await find_metrics("http://127.0.0.1:1", "m") == ()
    async with scripted(ScriptedServer()) as target:
        result = await run_load(target, Load([Conversation((Turn("a", 2),))]))
    assert figures(result, 0.1) == []


async def test_a_target_is_what_its_models_say() -> None:
    async with scripted(ScriptedServer()) as target:
        found = await find_target(options("--url", target.url))
        assert (found.model, found.server.name) == ("m", "pomona")
        # That of the other model is none of its.
        assert found.metrics_urls == (f"{target.url}/metrics",)
        named = options("--url", target.url, "--model", "x", "--server", "vllm", "--no-metrics")
        found = await find_target(named)
        assert (found.model, found.server.name, found.metrics_urls) == ("x", "vllm", ())
    with pytest.raises(LoadError, match="no models at"):
        await find_target(options("--url", target.url))


@pytest.mark.parametrize(
    ("server", "arguments", "status"),
    [
        (ScriptedServer(), [], 0),
        (ScriptedServer("no_done", wrong_every=3), [], 1),
        (ScriptedServer("429", wrong_every=4), [], 1),
        (ScriptedServer("429", wrong_every=4), ["--allow-refusals"], 0),
        (ScriptedServer(miscounted=1), [], 1),
        (ScriptedServer(miscounted=1), ["--no-metrics"], 0),
    ],
)
async def test_the_status_tells_whether_all_was_well(
    server: ScriptedServer,
    arguments: list[str],
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = [tmp_path / "result.json", tmp_path / "result.md"]
    # Of one token: a client that stands still may read several at once, with no time from one to
    # the next, and no tolerance is a part of none.
    common = ["--num-requests", "4", "--output-len", "1", "--tolerance", "1e9"]
    async with scripted(server) as target:
        arguments = [*common, *arguments, "--url", target.url, "--api-key", "a-secret-key"]
        arguments += ["--json", str(files[0]), "--markdown", str(files[1])]
        assert await asyncio.to_thread(main, arguments) == status
    told = capsys.readouterr()
    assert " Serving Benchmark Result " in told.out
    assert ("without [DONE]" in told.err) == (server.wrong == "no_done")
    kept = json.loads(files[0].read_text())
    assert kept["completed"] == 4 - sum((server.wrong != "", 0))
    assert [one["agrees"] for one in kept["agreement"]].count(False) == (
        server.miscounted and "--no-metrics" not in arguments
    )
    assert "| successful requests | " in files[1].read_text()
    assert "a-secret-key" not in "".join(path.read_text() for path in files)


def test_where_nobody_is_the_status_is_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:1"]) == 2
    assert "no models at http://127.0.0.1:1/v1/models" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_real_engine_behind_a_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    with engine_and_gateway(EngineConfig(max_num_seqs=4, num_kv_blocks=256)) as running:
        common = ["--url", running.gateway, "--tolerance", "1e9", "--output-len", "4-12"]
        streams = ["--num-requests", "12", "--concurrency", "4", "--input-len", "5-40"]
        sampled = ["--temperature", "0.8", "--top-p", "0.9", "--presence-penalty", "0.5"]
        assert main([*common, *streams, *sampled, "--warm-up", "2"]) == 0
        told = capsys.readouterr().out
        assert "Successful requests:                     12" in told
        assert "| requests | 12 | 12 | yes |" in told
        assert "mean TTFT, engine" in told
        tokens = ["--api", "completions", "--prompts", "tokens", "--vocab-size", "256"]
        again = ["--num-requests", "4", "--concurrency", "1", "--repeats", "4"]
        assert main([*common, *tokens, *again, "--input-len", "30"]) == 0
        assert "Total input tokens:                      120" in capsys.readouterr().out
        agents = ["--agents", "2", "--grow-to", "300", "--agent-system-len", "64"]
        lengths = ["--agent-input-len", "10-30", "--agent-output-len", "4", "--agent-pause", "0"]
        assert main([*common, *tokens, *agents, *lengths]) == 0
