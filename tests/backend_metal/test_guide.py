"""Tokens that nobody draws: what a grammar leaves no choice about, and ends of thoughts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import LLM  # isort: skip
from backend_metal.engine.schedule.scheduler import Scheduler
from backend_metal.engine.schedule.step import Step
from backend_metal.engine.text import output
from backend_metal.engine.text.output import SequenceOutput
from deployments.backend import (
    Delta,
    GenerationRequest,
    Grammar,
    Prefill,
    SamplingParams,
    Thoughts,
)
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.engine_harness import run
from tests.support.fuzzing import fuzz

SCHEMA = {
    "type": "object",
    "properties": {
        "the_name_of_the_city": {"enum": ["Cologne on the Rhine", "Cologne, Minnesota"]},
        "temperature_in_degrees": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["the_name_of_the_city", "temperature_in_degrees"],
    "additionalProperties": False,
}
GRAMMAR = Grammar("json_schema", json.dumps(SCHEMA))
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"top_p": 0.5, "top_k": 40},
    {"frequency_penalty": 1.5, "repetition_penalty": 1.2},
    {"logprobs": 0},
    {"logprobs": 3},
]
CALL = Grammar(
    "regex",
    "<call>the_name_of_the_city: (Cologne on the Rhine|Cassel on the Fulda), days: [1-9][0-9]?",
)
"""It leaves no choice at first."""
HELD: list[dict[str, Any]] = [
    {"bad_words": ("the", "<", "o")},
    {"allowed_token_ids": (*b"0123456789ao",)},
    {"logit_bias": {ord("o"): -1.0}},
    {"min_tokens": 40, "stop_token_ids": (ord("y"),)},
    {"stop": ("of_the",), "include_stop": True},
    {"stop": ("e: C",)},
    {"stop": ("city",), "min_tokens": 60},
    {"ignore_eos": True},
]
"""What has a say in which tokens may come, or are the last."""
BEGUN = [*b"assistant: <think>"]
THOUGHTS = Thoughts("<think>", "</think>")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    path: Path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)
    return LLM(str(path), num_kv_blocks=256, max_num_seqs=8, max_num_batched_tokens=64)


@dataclass(frozen=True)
class Answer:
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[Any, ...]
    num_thought_tokens: int
    finish_reason: str | None
    num_draws: int
    num_steps: int


def answers(llm: LLM, request: GenerationRequest, prompt: list[int]) -> Iterator[Answer]:
    """Each of the sequences', in order."""
    engine, sampling = llm.engine, request.sampling
    matcher = None
    if sampling.grammar is not None:
        matcher = engine.grammars.compile(
            sampling.grammar, sampling.thoughts, engine.text_end(prompt)
        )
    before = engine.stats().steps
    added = engine.add_request(request, prompt, matcher=matcher)
    items = [one.item for one in added] + run(engine).get(request.request_id, [])
    num_steps = engine.stats().steps - before
    for index in range(request.n):
        deltas = [item for item in items if isinstance(item, Delta) and item.index == index]
        yield Answer(
            tuple(token for delta in deltas for token in delta.token_ids),
            "".join(delta.text for delta in deltas),
            tuple(one for delta in deltas for one in delta.logprobs),
            deltas[-1].num_thought_tokens,
            deltas[-1].finish_reason,
            len(deltas),
            num_steps,
        )


def assert_same(one: Answer, other: Answer) -> None:
    """But for the steps that it took, and for rounding: a chunk's logits are a decode's."""
    no_matter = {"num_draws": 0, "num_steps": 0, "logprobs": ()}
    assert replace(one, **no_matter) == replace(other, **no_matter)
    for mine, its in zip(one.logprobs, other.logprobs, strict=True):
        assert mine.token_id == its.token_id
        pairs = zip((mine, *mine.top), (its, *its.top), strict=True)
        for first, second in pairs:
            assert first.logprob == pytest.approx(second.logprob, abs=1e-4)


def answer(llm: LLM, sampling: SamplingParams, prompt: list[int] | None = None) -> Answer:
    prompt = prompt or [1, 2, 3]
    (one,) = answers(llm, GenerationRequest("a", tuple(prompt), sampling), prompt)
    return one


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("most_forced", [0, 5])
def test_without_jumps_the_same_comes_in_more_steps(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], most_forced: int
) -> None:
    for seed in range(2):
        sampling = SamplingParams(max_tokens=300, seed=seed, grammar=GRAMMAR, **how)
        jumped = answer(llm, sampling)
        with monkeypatch.context() as patched:
            patched.setattr(output, "MOST_FORCED", most_forced)
            drawn = answer(llm, sampling)
        assert_same(jumped, drawn)
        jsonschema.validate(json.loads(jumped.text), SCHEMA)
        assert jumped.num_steps < drawn.num_steps
        if not most_forced:
            assert drawn.num_steps == len(drawn.token_ids)
            assert jumped.num_steps * 2 < drawn.num_steps


def test_what_was_not_drawn_is_certain(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=300, seed=1, logprobs=3, grammar=GRAMMAR)
    certain = [one for one in answer(llm, sampling).logprobs if one.logprob == 0.0]
    assert len(certain) > 40
    for one in certain:
        assert [(top.token_id, top.logprob) for top in one.top] == [(one.token_id, 0.0)]


def test_max_tokens_and_stop_strings_end_a_jump(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=300, seed=1, grammar=GRAMMAR)
    whole = answer(llm, sampling)
    for length in range(1, 30):
        cut = answer(llm, replace(sampling, max_tokens=length))
        assert cut.token_ids == whole.token_ids[:length]
        assert cut.finish_reason == "length"
    stopped = answer(llm, replace(sampling, stop=("_of_the_c",)))
    assert stopped.text == whole.text.partition("_of_the_c")[0]
    assert stopped.finish_reason == "stop"
    ended = answer(llm, replace(sampling, stop_token_ids=(ord("f"),)))
    assert ended.text == whole.text.partition("f")[0]


def test_a_bias_chooses_how_text_is_cut(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=300, seed=1, grammar=GRAMMAR, logit_bias={ord(" "): -1.0})
    one = answer(llm, sampling)
    assert one.num_steps == len(one.token_ids)


def test_forced_tokens_are_counted(llm: LLM) -> None:
    before = llm.stats()
    one = answer(llm, SamplingParams(max_tokens=300, seed=1, grammar=GRAMMAR))
    after = llm.stats()
    assert after.generation_tokens - before.generation_tokens == len(one.token_ids)
    assert after.forced_tokens - before.forced_tokens == len(one.token_ids) - one.num_draws


@pytest.fixture
def beginning_later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """Where the first token is drawn, though it is forced, and the others follow."""

    @contextmanager
    def later() -> Iterator[None]:
        with monkeypatch.context() as patched:
            patched.setattr(SequenceOutput, "begin", lambda output: [])
            yield

    return later


Later = Callable[[], AbstractContextManager[None]]


@pytest.mark.parametrize("how", [*WAYS, *HELD])
@pytest.mark.parametrize("n", [1, 3])
def test_what_is_forced_at_first_is_computed_with_the_prompt(
    llm: LLM, beginning_later: Later, how: dict[str, Any], n: int
) -> None:
    prompt = [*range(40)]
    for seed in range(2):
        sampling = SamplingParams(**{"max_tokens": 300, "seed": seed, **how}, grammar=CALL)
        request = GenerationRequest("a", tuple(prompt), sampling, n=n)
        llm.reset_prefix_cache()
        with beginning_later():
            later = list(answers(llm, request, prompt))
        llm.reset_prefix_cache()
        at_once = list(answers(llm, request, prompt))
        for one, other in zip(at_once, later, strict=True):
            assert_same(one, other)
        num_saved = later[0].num_steps - at_once[0].num_steps
        if "logit_bias" in how:
            assert num_saved == 0
        elif not {"stop", "stop_token_ids"} & how.keys():
            # The first's, and those of the others, which wait for its prompt.
            assert num_saved == (1 if n == 1 else 2)


def test_an_answer_that_is_forced_as_a_whole_is_a_prompt_alone(
    llm: LLM, beginning_later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_tokens: list[int] = []
    schedule = Scheduler.schedule

    def scheduled(scheduler: Scheduler) -> Step:
        step = schedule(scheduler)
        num_tokens.append(step.num_tokens)
        return step

    monkeypatch.setattr(Scheduler, "schedule", scheduled)
    prompt = [*range(40)]
    for text, max_tokens in (("a", 300), ("the only one", 300), ("x" * 200, 300), ("abc", 2)):
        grammar = Grammar("choice", json.dumps([text]))
        hows: list[dict[str, Any]] = [
            {},
            {"logprobs": 2},
            {"min_tokens": 9},
            {"ignore_eos": True, "min_tokens": 9},
        ]
        for how, n in itertools.product(hows, (1, 3)):
            sampling = SamplingParams(max_tokens=max_tokens, grammar=grammar, **how)
            request = GenerationRequest("a", tuple(prompt), sampling, n=n)
            with beginning_later():
                later = list(answers(llm, request, prompt))
            llm.reset_prefix_cache()
            num_tokens.clear()
            at_once = list(answers(llm, request, prompt))
            for one, other in zip(at_once, later, strict=True):
                assert_same(one, other)
                assert one.text == text[:max_tokens]
                assert one.finish_reason == ("stop" if max_tokens > len(text) else "length")
            if len(text) <= output.MOST_FORCED:
                # The others find two blocks of the prompt.
                assert num_tokens == ([40] if n == 1 else [40, 8 * (n - 1)])


def test_where_a_beginning_is_cut(llm: LLM, beginning_later: Later) -> None:
    """By ``max_tokens``, and by the end of the context."""
    sampling = SamplingParams(max_tokens=300, seed=1, grammar=CALL, temperature=1.0)
    longest = llm.engine.max_model_len
    for room in range(45):
        cut = replace(sampling, max_tokens=room)
        with beginning_later() if room else nullcontext():
            later = answer(llm, cut)
        assert_same(answer(llm, cut), later)
        if room:
            short = [number % 256 for number in range(longest - room)]
            with beginning_later():
                later = answer(llm, sampling, short)
            assert_same(answer(llm, sampling, short), later)
            assert len(later.token_ids) == room


def test_a_beginning_that_was_given_is_not_given_again(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=300, seed=1, grammar=CALL, logprobs=1)
    whole = answer(llm, sampling)
    for length in range(len(whole.token_ids)):
        resume = (whole.token_ids[:length],)
        request = GenerationRequest("a", (1, 2, 3), sampling, resume=resume)
        (again,) = answers(llm, request, [1, 2, 3])
        assert (again.token_ids, again.text) == (whole.token_ids, whole.text)


def test_prompts_are_told_of_as_without_a_beginning(llm: LLM, beginning_later: Later) -> None:
    """By what is read of them, and by how much of them was cached."""
    prompt = [*range(48)]
    sampling = SamplingParams(max_tokens=300, seed=1, grammar=CALL)

    def told(request_id: str, sampling: SamplingParams) -> list[Any]:
        request = GenerationRequest(request_id, tuple(prompt), sampling)
        assert sampling.grammar is not None
        matcher = llm.engine.grammars.compile(sampling.grammar)
        llm.engine.add_request(request, prompt, matcher=matcher)
        items = []
        while llm.engine.has_work:
            items += [one.item for one in llm.engine.step()]
        for item in items:
            if isinstance(item, Prefill):
                assert item.num_computed_tokens <= len(prompt)
            else:
                assert item.num_cached_tokens <= len(prompt)
        return items

    llm.reset_prefix_cache()
    read = told("read", replace(sampling, prompt_logprobs=1))
    llm.reset_prefix_cache()
    with beginning_later():
        expected = told("later", replace(sampling, prompt_logprobs=1))
    logprobs, wanted = (
        [one for item in items if isinstance(item, Prefill) for one in item.logprobs]
        for items in (read, expected)
    )
    assert [one.token_id for one in logprobs] == [one.token_id for one in wanted] == prompt
    for _ in range(2):
        before = llm.stats()
        *_, last = told("cached", sampling)
        after = llm.stats()
        # The tokens behind the prompt are cached, too, and are none of it.
        assert last.num_cached_tokens == 48
        assert last.prefix_miss is None
        assert after.prefix_cache_hit_tokens - before.prefix_cache_hit_tokens == 48


def test_aborted_and_paused_before_a_first_draw(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=300, seed=1, grammar=CALL)
    expected = answer(llm, sampling)
    engine = llm.engine
    request = GenerationRequest("a", (1, 2, 3), sampling)
    matcher = engine.grammars.compile(CALL)
    engine.add_request(request, [1, 2, 3], matcher=matcher)
    (aborted,) = engine.abort("a")
    assert isinstance(aborted.item, Delta)
    assert aborted.item.finish_reason == "abort"
    assert aborted.item.text.encode() == bytes(aborted.item.token_ids)
    assert expected.text.startswith(aborted.item.text)
    engine.add_request(request, [1, 2, 3], matcher=matcher)
    engine.pause("a")
    engine.check_integrity()
    engine.resume("a")
    deltas = run(engine)["a"]
    assert "".join(one.text for one in deltas if isinstance(one, Delta)) == expected.text


def test_a_beginning_is_preempted(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=300, seed=1, grammar=CALL, temperature=1.0)
    expected = [answer(llm, replace(sampling, seed=seed)).token_ids for seed in range(6)]
    small = LLM(llm.config.model, num_kv_blocks=10, max_num_seqs=4, max_num_batched_tokens=32)
    params = [replace(sampling, seed=seed) for seed in range(6)]
    together = small.generate([[1, 2, 3]] * 6, params, show_progress=False)
    assert small.stats().preemptions > 0
    assert [tuple(one.token_ids) for one in together] == expected


def bounded(budget: int | None, **how: Any) -> SamplingParams:
    sampling = SamplingParams(**{"max_tokens": 60, "seed": 1, "ignore_eos": True, **how})
    return replace(sampling, thoughts=replace(THOUGHTS, budget=budget))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_thought_ends_with_its_budget(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], budget: int
) -> None:
    """Random weights never end one themselves."""
    free = answer(llm, bounded(None, **how), BEGUN)
    assert free.num_thought_tokens == len(free.token_ids) == 60
    held = answer(llm, bounded(budget, **how), BEGUN)
    assert len(held.token_ids) == 60
    assert budget <= held.num_thought_tokens <= budget + 3
    thought = held.token_ids[: held.num_thought_tokens]
    assert thought == free.token_ids[: held.num_thought_tokens]
    assert bytes(held.token_ids[len(thought) :][:8]) == b"</think>"
    monkeypatch.setattr(output, "MOST_FORCED", 0)
    assert_same(held, answer(llm, bounded(budget, **how), BEGUN))


def test_what_has_not_begun_has_no_end(llm: LLM) -> None:
    assert answer(llm, bounded(0)).token_ids == answer(llm, bounded(None)).token_ids
    assert answer(llm, bounded(0)).num_thought_tokens == 0


def test_a_thought_that_the_model_begins_has_the_same_budget(llm: LLM) -> None:
    grammar = Grammar("grammar", 'start: "<think>" /[ -~]+/')
    one = answer(llm, replace(bounded(4), grammar=grammar))
    assert one.text.startswith("<think>")
    assert one.text[len("<think>") + 4 :].startswith("</think>")
    assert one.num_thought_tokens == 4


@fuzz(15)
@given(st.integers(0, 2**40), st.integers(0, 6), st.data())
def test_a_bounded_thought_and_its_answer_go_on_elsewhere(
    llm: LLM, seed: int, budget: int, data: Any
) -> None:
    sampling = bounded(budget, seed=seed, ignore_eos=False, max_tokens=400)
    sampling = replace(sampling, grammar=GRAMMAR, temperature=1.0)
    request = GenerationRequest("whole", tuple(BEGUN), sampling, n=2)
    whole = list(answers(llm, request, BEGUN))
    cut = tuple(one.token_ids[: data.draw(st.integers(0, len(one.token_ids)))] for one in whole)
    resumed = replace(request, request_id="resumed", resume=cut)
    again = list(answers(llm, resumed, BEGUN))
    for one, same in zip(whole, again, strict=True):
        assert_same(one, same)
        thought, _, rest = one.text.partition("</think>")
        jsonschema.validate(json.loads(rest), SCHEMA)
        assert budget <= one.num_thought_tokens <= budget + 3
        assert len(thought.encode()) == one.num_thought_tokens


def test_preempted_in_a_thought_and_in_a_jump(llm: LLM) -> None:
    sampling = replace(bounded(6, ignore_eos=False, max_tokens=200), grammar=GRAMMAR)
    expected = answer(llm, sampling, BEGUN)
    small = LLM(llm.config.model, num_kv_blocks=24, max_num_seqs=4, max_num_batched_tokens=32)
    together = small.generate([BEGUN] * 4, sampling, show_progress=False)
    assert small.stats().preemptions > 0
    assert [tuple(one.token_ids) for one in together] == [expected.token_ids] * 4


@pytest.mark.parametrize("budget", [0, 3])
def test_others_in_the_batch_draw_as_they_would(llm: LLM, budget: int) -> None:
    free = SamplingParams(max_tokens=30, seed=5, temperature=1.0, ignore_eos=True)
    held = replace(free, thoughts=replace(THOUGHTS, budget=budget))
    jumps = SamplingParams(max_tokens=60, seed=6, grammar=GRAMMAR)
    each = [free, held, jumps]
    alone = [llm.generate([BEGUN], one, show_progress=False)[0].token_ids for one in each]
    together = llm.generate([BEGUN] * 6, each * 2, show_progress=False)
    assert [one.token_ids for one in together] == alone * 2
