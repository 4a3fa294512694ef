"""A request that goes on in another engine ends as it would have ended in the first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import LLM  # isort: skip
from backend_metal.engine.engine import Engine
from deployments.backend import (
    Delta,
    GenerationRequest,
    Prefill,
    ResumeError,
    SamplingParams,
)
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.engine_harness import byte_tokenizer, make_engine, run
from tests.support.fuzzing import fuzz

PROMPT = list(range(1, 21))
Answers = dict[int, list[Delta]]
"""Deltas by sequence."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    path: Path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)
    return LLM(str(path), num_kv_blocks=128, max_num_seqs=8, max_num_batched_tokens=64)


def answers(engine: Engine, request: GenerationRequest, prompt: list[int] = PROMPT) -> Answers:
    admitted, *items = [output.item for output in engine.add_request(request, prompt)]
    assert admitted == Prefill(0, len(prompt))
    items += run(engine).get(request.request_id, [])
    by_sequence: Answers = {index: [] for index in range(request.n)}
    for item in items:
        assert isinstance(item, Delta), item
        by_sequence[item.index].append(item)
    return by_sequence


def cut(whole: Answers, lengths: list[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(token for delta in whole[index][:length] for token in delta.token_ids)
        for index, length in enumerate(lengths)
    )


def seen(deltas: list[Delta]) -> list[tuple[Any, ...]]:
    return [(d.text, d.token_ids, d.num_prompt_tokens, d.finish_reason) for d in deltas]


def merged(deltas: list[Delta]) -> list[tuple[Any, ...]]:
    """What ``seen`` has of one delta for all of them; of none if there are none."""
    text = "".join(delta.text for delta in deltas)
    token_ids = tuple(token for delta in deltas for token in delta.token_ids)
    return [(text, token_ids, d.num_prompt_tokens, d.finish_reason) for d in deltas[-1:]]


def check(whole: Answers, resumed: Answers, lengths: list[int]) -> None:
    for index, length in enumerate(lengths):
        replayed = [delta for delta in resumed[index] if delta.replayed]
        rest = [delta for delta in resumed[index] if not delta.replayed]
        assert resumed[index] == replayed + rest
        assert seen(replayed) == merged(whole[index][:length])
        assert seen(rest) == seen(whole[index][length:])
        for one, other in zip(whole[index][length:], rest, strict=True):
            assert [t.token_id for t in one.logprobs] == [t.token_id for t in other.logprobs]
            assert [[a.token_id for a in t.top] for t in one.logprobs] == [
                [a.token_id for a in t.top] for t in other.logprobs
            ]
            for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):
                assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-5)


def sampling(**params: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "seed": 3, **params})


@fuzz(60)
@given(st.data())
def test_every_cut_of_every_request_goes_on_as_it_would_have(tokenizer: Any, data: Any) -> None:
    n = data.draw(st.integers(1, 4))
    prompt = data.draw(st.lists(st.integers(0, 49), min_size=1, max_size=40))
    params = sampling(
        max_tokens=data.draw(st.integers(1, 20)),
        stop=tuple(data.draw(st.lists(st.text("!\"#$%&'()*", min_size=1, max_size=3), max_size=2))),
        stop_token_ids=tuple(data.draw(st.lists(st.integers(0, 49), max_size=2))),
    )
    request = GenerationRequest("a", tuple(prompt), params, n=n)
    shape = {"num_blocks": data.draw(st.integers(10, 40)), "max_model_len": 70}
    budget = {"max_num_seqs": 4, "max_num_batched_tokens": data.draw(st.integers(4, 64))}
    whole = answers(make_engine(tokenizer, **shape, **budget)[0], request, prompt)
    lengths = [data.draw(st.integers(0, len(whole[index]))) for index in range(n)]

    other, _ = make_engine(tokenizer, **shape, **budget)
    others_prompt = [7] * 9
    beside = GenerationRequest("beside", (7,) * 9, sampling(max_tokens=12), n=2)
    other.add_request(beside, others_prompt)
    for _ in range(data.draw(st.integers(0, 4))):
        other.step()
    resumed = answers(other, replace(request, resume=cut(whole, lengths)), prompt)
    check(whole, resumed, lengths)


CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "truncated": {"temperature": 0.9, "top_p": 0.7},
    "candidates": {"temperature": 1.2, "top_k": 20, "min_p": 0.01},
    "penalties": {
        "temperature": 0.8,
        "repetition_penalty": 1.5,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.5,
    },
    "bias": {"temperature": 1.0, "logit_bias": {65: 8.0, 66: 8.0, 67: -100.0}},
    "logprobs": {"temperature": 1.0, "logprobs": 3},
    "lists": {
        "temperature": 1.0,
        "min_tokens": 9,
        "stop_token_ids": tuple(range(0, 256, 2)),
        "bad_words": ("A", "BC"),
        "allowed_token_ids": tuple(range(60, 90)),
    },
    "included stop": {
        "temperature": 1.0,
        "logit_bias": {65: 12.0, 66: 12.0},
        "stop": ("ABAB", "BBB"),
        "include_stop": True,
        "min_tokens": 6,
    },
    "stop": {"temperature": 1.0, "logit_bias": {65: 12.0, 66: 12.0}, "stop": ("ABAB", "BBB")},
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_goes_on_with_the_tokens_that_it_would_have_drawn(llm: LLM, case: str) -> None:
    params = sampling(**CASES[case], ignore_eos=True, max_tokens=24)
    request = GenerationRequest("a", tuple(PROMPT), params, n=2)
    llm.reset_prefix_cache()
    whole = answers(llm.engine, request)
    longest = [len(whole[index]) for index in range(2)]
    for at in (0, 1, 2, 7, 13, max(longest) - 1, max(longest)):
        llm.reset_prefix_cache()
        lengths = [min(at, longest[0]), min(max(at - 1, 0), longest[1])]
        check(whole, answers(llm.engine, replace(request, resume=cut(whole, lengths))), lengths)


def test_an_answer_that_was_finished_needs_no_step(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer)
    request = GenerationRequest("a", tuple(PROMPT), sampling(), n=2)
    whole = answers(engine, request)
    num_steps, successes = engine.stats().steps, engine.stats().request_success
    check(whole, answers(engine, replace(request, resume=cut(whole, [8, 8]))), [8, 8])
    assert engine.stats().steps == num_steps
    assert engine.stats().request_success == successes


@pytest.mark.parametrize("num_tokens", [0, 4])
def test_a_resumed_request_is_not_queued_behind_new_ones(tokenizer: Any, num_tokens: int) -> None:
    engine, _ = make_engine(tokenizer, max_num_seqs=1)
    request = GenerationRequest("old", tuple(PROMPT), sampling())
    whole = answers(engine, request)
    engine.add_request(GenerationRequest("running", (1, 2), sampling(max_tokens=3)), [1, 2])
    engine.step()
    engine.add_request(GenerationRequest("waiting", (1, 2), sampling(max_tokens=3)), [1, 2])
    engine.add_request(replace(request, resume=cut(whole, [num_tokens])), PROMPT)
    ended = []
    while engine.has_work:
        ended += [
            output.request_id
            for output in engine.step()
            if isinstance(output.item, Delta) and output.item.finish_reason
        ]
    assert ended == ["running", "old", "waiting"]


def test_the_sequences_that_go_on_share_their_prompt(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer, prefix_caching=False)
    request = GenerationRequest("a", tuple(PROMPT), sampling(), n=3)
    whole = answers(engine, request)
    engine.add_request(replace(request, resume=cut(whole, [8, 2, 5])), PROMPT)
    # The first is finished, so the second computes the prompt, and then the third finds it.
    engine.step()
    assert [sequence.index for sequence in engine.scheduler.running] == [1]
    step = engine.scheduler.schedule()
    assert [(item.sequence.index, item.num_tokens) for item in step.scheduled] == [(1, 1), (2, 9)]


def test_statistics_count_only_what_was_generated_here(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer)
    request = GenerationRequest("a", tuple(PROMPT), sampling())
    whole = answers(engine, request)
    other, _ = make_engine(tokenizer)
    answers(other, replace(request, resume=cut(whole, [5])))
    stats = other.stats()
    assert stats.generation_tokens == 3
    assert stats.prefix_cache_query_tokens == 0
    assert sum(stats.time_per_output_token.counts) == 1


@pytest.mark.parametrize(
    ("resume", "message"),
    [(((50,),), "token ids 50 to 50"), (((1,) * 9,), "9 tokens, but ends at 8")],
)
def test_output_that_can_not_be_this_models_is_refused(
    tokenizer: Any, resume: tuple[tuple[int, ...], ...], message: str
) -> None:
    engine, _ = make_engine(tokenizer)
    with pytest.raises(ResumeError, match=message):
        engine.add_request(GenerationRequest("a", (1,), sampling(), resume=resume), [1])
    assert engine.stats().request_failure == {"server_error": 1}
    assert not engine.has_work


def test_a_request_names_the_tokens_of_each_sequence_and_a_seed() -> None:
    with pytest.raises(ValueError, match="each of 2 sequences, not 1"):
        GenerationRequest("a", (1,), sampling(), n=2, resume=((1,),))
    with pytest.raises(ValueError, match="a seed, not None"):
        GenerationRequest("a", (1,), SamplingParams(), resume=((1,),))
