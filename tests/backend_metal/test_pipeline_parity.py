"""Two steps at a time give the answers that one at a time gives: whatever is asked of each
sequence, whatever happens around it, by the kernels of the path, by the reference, and where decode
steps are recorded. Graphs of decode steps are repeated by the path's kernels, and never where one
step is run at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import LLM  # isort: skip
from backend_metal.engine.engine import Engine, Output
from deployments.backend import Delta, GenerationRequest, Grammar, SamplingParams, Thoughts
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.rerun import recording_device
from tests.support.backend_metal.unpipelined import unpipelined
from tests.support.fuzzing import fuzz

GRAMMAR = Grammar("regex", "(Cologne|Cassel) on the (Rhine|Fulda), [0-9]{1,3}(, [a-z]+){0,2}")
FORCED_AT_FIRST = Grammar("regex", "<call>a long name of a tool: (Cologne|Cassel), [a-z]+")
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.0, "frequency_penalty": 0.7, "presence_penalty": 0.3},
    {"temperature": 0.0, "logprobs": 2, "logit_bias": {65: 6.0, 66: 6.0, 67: 5.9}},
    {},
    {"frequency_penalty": 2.0, "repetition_penalty": 0.8, "logit_bias": {70: 4.0}},
    {"top_k": 5, "presence_penalty": 1.0},
    {"top_p": 0.6, "top_k": 60},
    {"min_p": 0.2, "logprobs": 0},
    {"stop": ("a", "b", "c", "d")},
    {"stop_token_ids": (*range(30),), "include_stop": True},
    {"min_tokens": 9, "stop_token_ids": (*range(60),)},
    {"bad_words": ("a", "Q", "xy"), "allowed_token_ids": (*range(32, 127),)},
    {"grammar": GRAMMAR},
    {"grammar": GRAMMAR, "temperature": 0.0, "logprobs": 1},
    {"grammar": FORCED_AT_FIRST},
    {"grammar": FORCED_AT_FIRST, "frequency_penalty": 2.0, "stop": ("t", "C")},
    {"grammar": FORCED_AT_FIRST, "prompt_logprobs": 0, "logprobs": 1},
    {"thoughts": Thoughts("<think>", "</think>", budget=5)},
    {"prompt_logprobs": 1},
]
PROMPTS = [[1], [*range(40)], [*range(16), 7, 7], [*range(32)], [9] * 21, [*b"a: <think>"]]


@dataclass(frozen=True)
class Answer:
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None


@dataclass(frozen=True)
class Asked:
    prompt: int
    way: int
    n: int
    max_tokens: int


@dataclass
class Engines:
    pipelined: Engine
    expected: Callable[[Asked], list[Answer]]
    """Of an engine that runs one request and one step at a time."""


@pytest.fixture(scope="module")
def records() -> Iterator[str]:
    with recording_device() as device:
        yield device.name


@pytest.fixture(scope="module", params=["auto", "reference", "recorded"])
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, records: str
) -> Engines:
    path: Path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)

    attention = "reference" if request.param == "reference" else "auto"

    def load(device: str = "auto", **settings: Any) -> Engine:
        llm = LLM(str(path), block_size=8, attention=attention, device=device, **settings)
        return llm.engine

    one = unpipelined(load(num_kv_blocks=64, max_num_seqs=4, max_num_batched_tokens=64))
    runner: Any = one._pipeline.runner
    runner._repeated = None

    @cache
    def expected(asked: Asked) -> list[Answer]:
        one.reset_prefix_cache()
        items: dict[int, list[Delta]] = {}
        add(one, "a", asked)
        while one.has_work:
            for output in one.step():
                if isinstance(output.item, Delta):
                    items.setdefault(output.item.index, []).append(output.item)
        return [answer(items[index]) for index in range(asked.n)]

    # Too few blocks for all, so that some are preempted.
    device = records if request.param == "recorded" else "auto"
    engine = load(device, num_kv_blocks=22, max_num_seqs=5, max_num_batched_tokens=24)
    return Engines(engine, expected)


def add(engine: Engine, request_id: str, asked: Asked) -> list[Output]:
    prompt = PROMPTS[asked.prompt]
    sampling = SamplingParams(**{"seed": 5, "max_tokens": asked.max_tokens, **WAYS[asked.way]})
    request = GenerationRequest(request_id, tuple(prompt), sampling, n=asked.n)
    matcher = None
    if sampling.grammar is not None:
        matcher = engine.grammars.compile(sampling.grammar, None, engine.text_end(prompt))
    return engine.add_request(request, prompt, matcher=matcher)


def answer(deltas: list[Delta]) -> Answer:
    return Answer(
        tuple(token for delta in deltas for token in delta.token_ids),
        "".join(delta.text for delta in deltas),
        deltas[-1].finish_reason if deltas else None,
    )


asks = st.builds(
    Asked,
    prompt=st.integers(0, len(PROMPTS) - 1),
    way=st.integers(0, len(WAYS) - 1),
    n=st.sampled_from([1, 1, 1, 2, 3]),
    max_tokens=st.sampled_from([0, 1, 2, 13, 24]),
)
events = st.sampled_from(["", "", "", "abort", "pause", "resume", "preempt", "reset"])


@fuzz(400, quick=10)
@given(data=st.data())
def test_answers_are_those_of_one_step_at_a_time(engines: Engines, data: Any) -> None:
    engine = engines.pipelined
    engine.abort_all()  # What an example that was cut short has left.
    engine.reset_prefix_cache()
    asked: dict[str, Asked] = {}
    items: dict[tuple[str, int], list[Delta]] = {}
    aborted: set[str] = set()
    paused: set[str] = set()

    def hear(outputs: list[Output]) -> None:
        for output in outputs:
            assert not isinstance(output.item, Exception), output
            if isinstance(output.item, Delta):
                items.setdefault((output.request_id, output.item.index), []).append(output.item)
        engine.check_integrity()

    for number in range(data.draw(st.integers(2, 7), "requests")):
        name = str(number)
        asked[name] = data.draw(asks, "asked")
        hear(add(engine, name, asked[name]))
        for _ in range(data.draw(st.integers(0, 6), "steps")):
            hear(engine.step() if engine.has_work else [])
        match data.draw(events, "event"):
            case "abort":
                aborted.add(victim := data.draw(st.sampled_from([*asked]), "victim"))
                engine.abort(victim)
            case "pause":
                paused.add(victim := data.draw(st.sampled_from([*asked]), "victim"))
                engine.pause(victim)
            case "resume" if paused:
                paused.remove(victim := data.draw(st.sampled_from(sorted(paused)), "victim"))
                engine.resume(victim)
            case "preempt":
                engine.scheduler.preempt_all()
            case "reset":
                engine.reset_prefix_cache()
        engine.check_integrity()
    for name in paused:
        engine.resume(name)
    while engine.has_work:
        hear(engine.step())
    for name, one in asked.items():
        for index, wanted in enumerate(engines.expected(one)):
            got = answer(items.get((name, index), []))
            if name in aborted and got.finish_reason is None:
                text = wanted.text[: len(got.text)]
                wanted = replace(
                    wanted,
                    token_ids=wanted.token_ids[: len(got.token_ids)],
                    text=text,
                    finish_reason=None,
                )
            assert got == wanted, (one, index)


def test_the_answers_above_are_preempted(engines: Engines) -> None:
    before = engines.pipelined.scheduler.num_preemptions
    for number in range(4):
        add(engines.pipelined, str(number), Asked(1, 0, 2, 24))
    while engines.pipelined.has_work:
        engines.pipelined.step()
    assert engines.pipelined.scheduler.num_preemptions > before


def test_caches_stay_where_they_are(engines: Engines) -> None:
    """Though the step before may still be at work on them when a step is submitted."""
    runner: Any = engines.pipelined._pipeline.runner

    def addresses() -> list[int]:
        views = [np.asarray(memoryview(array)) for array in runner.pool.evaluation_roots()]
        return [view.__array_interface__["data"][0] for view in views]

    before = addresses()
    for number in range(4):
        add(engines.pipelined, str(number), Asked(1, 0, 2, 24))
    while engines.pipelined.has_work:
        engines.pipelined.step()
    assert addresses() == before
