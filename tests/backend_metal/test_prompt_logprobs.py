"""Logprobs of prompts against mlx-lm's model on the same weights, however the work is cut up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from backend_metal import LLM  # isort: skip
from backend_metal.engine.engine import Engine, Output
from backend_metal.engine.schedule.prompt_readings import MAX_ROWS_PER_STEP, PromptReadings
from backend_metal.engine.schedule.step import Step
from deployments.backend import GenerationRequest, Prefill, SamplingParams, TokenLogprob
from tests.support.backend_metal import tiny_models

LENGTHS = (1, 2, 16, 47, 300)
NUM_TOP = 3


@dataclass
class Told:
    prompt: list[TokenLogprob]
    tokens: dict[int, list[int]]
    """By sequence."""
    num_cached: int
    told_before: bool
    """Whether all of the prompt came before any token."""


def prompt_of(length: int) -> list[int]:
    rng = np.random.default_rng(length)
    return rng.integers(0, tiny_models.VOCAB_SIZE, length).tolist()


def ask(
    engine: Engine,
    *requests: GenerationRequest,
    between_steps: Callable[[], None] = lambda: None,
) -> dict[str, Told]:
    told = {one.request_id: Told([], {}, 0, True) for one in requests}

    def hear(outputs: list[Output]) -> None:
        for output in outputs:
            one, item = told[output.request_id], output.item
            assert not isinstance(item, Exception), item
            if isinstance(item, Prefill):
                one.told_before &= not (item.logprobs and one.tokens)
                one.prompt += item.logprobs
            else:
                one.told_before &= item.replayed or bool(one.prompt)
                one.tokens.setdefault(item.index, []).extend(item.token_ids)
                one.num_cached = item.num_cached_tokens

    for one in requests:
        hear(engine.add_request(one, list(one.prompt)))
    while engine.has_work:
        hear(engine.step())
        between_steps()
        engine.check_integrity()
    return told


def request(name: str, prompt: list[int], *, n: int = 1, **sampling: Any) -> GenerationRequest:
    params = SamplingParams(
        **{"max_tokens": 4, "ignore_eos": True, "prompt_logprobs": NUM_TOP, "seed": 1} | sampling
    )
    return GenerationRequest(name, tuple(prompt), params, n=n)


@pytest.fixture(scope="module", params=["qwen3", "gemma2-dense"])
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[int, np.ndarray]]:
    """Where it is, and mlx-lm's logprobs of each prompt, ``[length, vocab_size]``."""
    path = tmp_path_factory.mktemp(request.param)
    tiny_models.save(request.param, path)
    model, _ = tiny_models.build(request.param)
    dense = {}
    for length in LENGTHS:
        logits = model(mx.array([prompt_of(length)]))[0].astype(mx.float32)
        dense[length] = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    return path, dense


CUTS = {
    "whole": {"max_num_batched_tokens": 512, "num_kv_blocks": 120},
    "small chunks": {"max_num_batched_tokens": 16, "num_kv_blocks": 120, "prefix_caching": False},
    "one at a time": {"max_num_batched_tokens": 64, "num_kv_blocks": 120, "max_num_seqs": 1},
    "few blocks": {"max_num_batched_tokens": 64, "num_kv_blocks": 26},
}


@pytest.mark.parametrize("cut", CUTS)
def test_prompts_read_as_mlx_lm_reads_them(
    checkpoint: tuple[Path, dict[int, np.ndarray]], cut: str
) -> None:
    path, dense = checkpoint
    engine = LLM(str(path), **{"max_num_seqs": 4, **CUTS[cut]}).engine
    for _ in ("at first", "with the prompts in the cache"):
        requests = [request(str(length), prompt_of(length)) for length in LENGTHS]
        told = ask(engine, *requests)
        for length in LENGTHS:
            check(told[str(length)], prompt_of(length), dense[length])


def test_prompts_that_are_interrupted_are_read_on(
    checkpoint: tuple[Path, dict[int, np.ndarray]],
) -> None:
    """Each after each of its steps, as by a client that doesn't read."""
    path, dense = checkpoint
    engine = LLM(str(path), num_kv_blocks=60, max_num_batched_tokens=64).engine
    requests = [request(str(length), prompt_of(length), n=2) for length in LENGTHS]
    steps = 0

    def interrupt() -> None:
        nonlocal steps
        steps += 1
        for one in requests:
            engine.pause(one.request_id)
            engine.resume(one.request_id)

    told = ask(engine, *requests, between_steps=interrupt)
    for length in LENGTHS:
        check(told[str(length)], prompt_of(length), dense[length])
    # What was computed is not computed again, but for the rest of a block.
    assert steps < 3 * sum(LENGTHS) / 64 + 10


def test_a_step_reads_so_many_rows_at_most(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, most = llm.engine.scheduler.schedule, 0

    def counted() -> Step:
        nonlocal most
        step = schedule()
        most = max(most, sum(len(item.prompt_rows) for item in step.scheduled))
        return step

    monkeypatch.setattr(llm.engine.scheduler, "schedule", counted)
    ask(llm.engine, *(request(str(i), prompt_of(300)) for i in range(3)))
    assert most == MAX_ROWS_PER_STEP


def check(told: Told, prompt: list[int], dense: np.ndarray) -> None:
    assert told.told_before, "a token came before its prompt was told"
    assert told.num_cached == 0
    assert [one.token_id for one in told.prompt] == prompt
    first, *others = told.prompt
    assert (first.rank, first.top) == (0, ())
    for position, one in enumerate(others):
        row = dense[position]
        assert one.logprob == pytest.approx(row[one.token_id], abs=1e-3)
        best = np.argsort(-row, kind="stable")[:NUM_TOP]
        assert [top.logprob for top in one.top] == pytest.approx(row[best].tolist(), abs=1e-3)
        # Tokens that are as likely as each other, up to rounding, may change places.
        assert (row > row[one.token_id] + 1e-3).sum() < one.rank
        assert one.rank <= (row > row[one.token_id] - 1e-3).sum()


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)
    return LLM(str(path), num_kv_blocks=120, max_num_seqs=4, max_num_batched_tokens=200)


def test_a_prompt_is_read_once_for_all_its_answers(llm: LLM) -> None:
    prompt = prompt_of(47)
    one = ask(llm.engine, request("a", prompt))["a"]
    for name, changed in {
        "several": {"n": 3},
        "none": {"max_tokens": 0},
        "no alternatives": {"prompt_logprobs": 0},
        "many": {"prompt_logprobs": 20, "logprobs": 1},
        "restricted": {"allowed_token_ids": (1, 2), "temperature": 0.0},
    }.items():
        told = ask(llm.engine, request(name, prompt, **changed))[name]
        assert [t.token_id for t in told.prompt] == prompt, name
        assert [t.logprob for t in told.prompt] == [t.logprob for t in one.prompt], name
        most = changed.get("prompt_logprobs", NUM_TOP)
        assert {len(t.top) for t in told.prompt[1:]} == {most}
        assert len(told.tokens) == changed.get("n", 1)


def test_who_does_not_ask_hears_nothing_and_gets_the_same_tokens(llm: LLM) -> None:
    prompt = prompt_of(47)
    plain, asks = request("plain", prompt, prompt_logprobs=None), request("asks", prompt)
    told = ask(llm.engine, plain, asks)
    assert told["plain"].prompt == []
    assert told["plain"].tokens == told["asks"].tokens
    after = ask(llm.engine, plain)["plain"]
    assert after.num_cached == 32
    assert after.tokens == told["asks"].tokens


@pytest.mark.parametrize(("lengths", "reads"), [((0, 0), True), ((2, 0), True), ((2, 1), False)])
def test_a_resumed_prompt_is_read_for_those_who_have_not_heard_of_it(
    llm: LLM, lengths: tuple[int, int], reads: bool
) -> None:
    asked = request("a", prompt_of(20), n=2)
    whole = ask(llm.engine, asked)["a"]
    resume = tuple(tuple(whole.tokens[i][:length]) for i, length in enumerate(lengths))
    again = GenerationRequest("b", asked.prompt, asked.sampling, n=2, resume=resume)
    told = ask(llm.engine, again)["b"]
    assert told.tokens == whole.tokens
    assert len(told.prompt) == (20 if reads else 0)


def test_readings_go_on_where_they_were() -> None:
    readings = PromptReadings(0, first_token=7, num_prompt_tokens=6)
    assert readings.rows(0, 3) == range(3)
    assert not readings.is_complete
    (first,) = readings.take()
    assert first.token_id == 7
    readings.add([first] * 3, 0)
    assert not readings.rows(0, 3)
    assert readings.rows(0, 6) == range(3, 5)
    readings.add([first] * 4, 1)
    assert readings.is_complete
    assert len(readings.take()) == 5
    assert readings.take() == []
    assert PromptReadings(0, first_token=7, num_prompt_tokens=1).is_complete
