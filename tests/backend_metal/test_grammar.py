"""Answers that match a grammar: every one of them, however they are drawn, cut and resumed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import LLM  # isort: skip
from backend_metal.engine.grammar.compiler import GrammarCompiler
from deployments.backend import (
    DeadEndError,
    Delta,
    GenerationRequest,
    Grammar,
    InvalidRequestError,
    ResumeError,
    SamplingParams,
    Thoughts,
)
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.engine_harness import run
from tests.support.fuzzing import fuzz

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", "é🍏"]}, "maxItems": 3},
        "parent": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/named"}]},
    },
    "required": ["name", "age", "tags", "parent"],
    "additionalProperties": False,
    "$defs": {
        "named": {
            "type": "object",
            "properties": {"name": {"type": "string", "pattern": "^[A-Z][a-z]{0,8}$"}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}


def of_schema(schema: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(schema), "response_format")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    path: Path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)
    return LLM(str(path), num_kv_blocks=256, max_num_seqs=8, max_num_batched_tokens=64)


@pytest.fixture(scope="module")
def compiler(llm: LLM) -> GrammarCompiler:
    return llm.engine.grammars


PERSON_GRAMMAR = of_schema(PERSON)
NUMBER = re.compile(r"[1-9][0-9]{2,4}(\.[0-9]{1,3})?")
CHOICES = ["yes", "no", 'a "quoted\\" one\n', "é🍏", "yes, but"]


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 2.0},
        {"top_p": 0.5},
        {"top_k": 3},
        {"min_p": 0.2},
        {"temperature": 2.0, "ignore_eos": True},
        {"frequency_penalty": 2.0, "repetition_penalty": 1.5, "logit_bias": {34: -100.0}},
    ],
)
def test_whatever_is_drawn_matches(llm: LLM, how: dict[str, Any]) -> None:
    """The weights are random: nothing but the grammar leads to an answer."""
    grammars = [
        PERSON_GRAMMAR,
        Grammar("regex", NUMBER.pattern),
        Grammar("choice", json.dumps(CHOICES)),
        Grammar("grammar", 'start: "<" /[a-c]{2,5}/ ">" start?'),
        Grammar("grammar", 'root ::= "(" [0-9] ("," [0-9]){0,4} ")"'),
    ]
    params = [
        SamplingParams(max_tokens=600, seed=seed, grammar=grammar, **how)
        for seed in range(4)
        for grammar in grammars
    ]
    answers = llm.generate([[1, 2, 3]] * len(params), params, show_progress=False)
    for sampling, answer in zip(params, answers, strict=True):
        assert sampling.grammar is not None
        if answer.finish_reason == "length":
            # Only what repeats without a bound can get there.
            assert sampling.grammar == grammars[3], answer.text
            continue
        assert answer.finish_reason == "stop"
        match grammars.index(sampling.grammar):
            case 0:
                jsonschema.validate(json.loads(answer.text), PERSON)
            case 1:
                assert NUMBER.fullmatch(answer.text)
            case 2:
                assert answer.text in CHOICES
            case 3:
                assert re.fullmatch(r"(<[a-c]{2,5}>)+", answer.text)
            case 4:
                assert re.fullmatch(r"\([0-9](,[0-9]){0,4}\)", answer.text)


def test_others_in_the_batch_draw_as_they_would(llm: LLM) -> None:
    free = SamplingParams(max_tokens=12, seed=5, temperature=1.0)
    held = replace(free, grammar=PERSON_GRAMMAR, max_tokens=60)
    alone = [llm.generate([[1, 2]], one, show_progress=False)[0] for one in (free, held)]
    together = llm.generate([[1, 2]] * 4, [free, held, free, held], show_progress=False)
    assert [one.token_ids for one in together] == [one.token_ids for one in alone] * 2


def test_logprobs_are_of_the_tokens_that_the_grammar_leaves(llm: LLM) -> None:
    sampling = SamplingParams(
        max_tokens=5, seed=1, logprobs=20, grammar=Grammar("choice", '["aXc", "abc"]')
    )
    (answer,) = llm.generate([[1]], sampling, show_progress=False)
    assert answer.logprobs is not None
    first, second, third = answer.logprobs
    assert (first.logprob, third.logprob) == (0.0, 0.0)
    assert sorted(token.text for token in second.top) == ["X", "b"]
    assert [token.text for token in first.top] == ["a"]


def answer_of(llm: LLM, request: GenerationRequest) -> list[Delta]:
    sampling = request.sampling
    assert sampling.grammar is not None
    matcher = llm.engine.grammars.compile(sampling.grammar)
    added = llm.engine.add_request(request, [1, 2, 3], matcher=matcher)
    items = [output.item for output in added] + run(llm.engine).get(request.request_id, [])
    llm.engine.check_integrity()
    return [item for item in items if isinstance(item, Delta)]


def text_of(deltas: list[Delta]) -> list[str]:
    texts = dict.fromkeys(sorted({delta.index for delta in deltas}), "")
    for delta in deltas:
        texts[delta.index] += delta.text
    return list(texts.values())


@fuzz(10)
@given(st.integers(0, 2**40), st.data())
def test_a_resumed_answer_goes_on_within_its_grammar(llm: LLM, seed: int, data: Any) -> None:
    sampling = SamplingParams(
        max_tokens=400, seed=seed, temperature=1.0, top_p=0.95, grammar=PERSON_GRAMMAR
    )
    request = GenerationRequest("whole", (1, 2, 3), sampling, n=2)
    whole = answer_of(llm, request)
    tokens = [[t for d in whole if d.index == index for t in d.token_ids] for index in (0, 1)]
    cut = tuple(tuple(one[: data.draw(st.integers(0, len(one)))]) for one in tokens)
    resumed = answer_of(llm, replace(request, request_id="resumed", resume=cut))
    assert text_of(resumed) == text_of(whole)
    for text in text_of(whole):
        jsonschema.validate(json.loads(text), PERSON)


def test_output_that_breaks_the_grammar_is_not_resumed(llm: LLM) -> None:
    sampling = SamplingParams(seed=1, grammar=Grammar("choice", '["yes", "no"]'))
    request = GenerationRequest("broken", (1,), sampling, resume=((120, 121),))
    with pytest.raises(ResumeError, match="breaks its grammar"):
        answer_of(llm, request)


def test_preempted_sequences_go_on_within_their_grammar(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=200, seed=3, temperature=1.0, grammar=PERSON_GRAMMAR)
    expected = llm.generate([[1, 2, 3]], sampling, show_progress=False)[0]
    small = LLM(llm.config.model, num_kv_blocks=24, max_num_seqs=4, max_num_batched_tokens=32)
    answers = small.generate([[1, 2, 3]] * 4, sampling, show_progress=False)
    assert small.stats().preemptions > 0
    assert [answer.token_ids for answer in answers] == [expected.token_ids] * 4


def test_a_matcher_that_fails_ends_its_own_request_alone(llm: LLM) -> None:
    """Too complex to go on with is known only on the way."""
    matcher = llm.engine.grammars.compile(PERSON_GRAMMAR)
    sampling = SamplingParams(max_tokens=40, seed=1, grammar=PERSON_GRAMMAR)
    llm.engine.add_request(GenerationRequest("well", (1,), sampling), [1], matcher=matcher)
    llm.engine.add_request(GenerationRequest("ill", (1,), sampling), [1], matcher=matcher)
    llm.engine.step()
    ill = next(one for one in llm.engine.scheduler.running if one.request_id == "ill")
    assert ill.guide is not None
    with pytest.raises(InvalidRequestError):
        ill.guide.advance(0)
    items = run(llm.engine)
    assert isinstance(items["ill"][-1], InvalidRequestError)
    assert "response_format" in str(items["ill"][-1])
    assert isinstance(items["well"][-1], Delta)
    assert items["well"][-1].finish_reason
    llm.engine.check_integrity()


BLANKS = "\n" * 9
"""More than a model needs: some would write them for ever."""


@pytest.mark.parametrize(
    ("grammar", "answer"),
    [
        (of_schema({"type": "object"}), '{"a": 1}'),
        (Grammar("regex", "[0-9]+"), "12"),
        (Grammar("choice", '["yes", "no"]'), "no"),
        (Grammar("grammar", 'start: "<" x\nx: /a+/'), "<aa"),
        (Grammar("grammar", 'root ::= "(" x\nx ::= [0-9]'), "(1"),
    ],
)
@pytest.mark.parametrize("end", ["</think>", tiny_models.END_OF_TURN])
def test_a_thought_that_the_prompt_began_comes_first(
    compiler: GrammarCompiler, llm: LLM, grammar: Grammar, answer: str, end: str
) -> None:
    def accepts(text: str, prompt_end: str) -> bool:
        matcher = compiler.compile(grammar, Thoughts("<think>", end), prompt_end)
        try:
            for token_id in llm.engine.tokenizer.encode(text, add_special_tokens=False):
                matcher.advance(token_id)
        except InvalidRequestError:
            return False
        return matcher.is_accepting

    for begun in ("assistant: <think>", "<think>\n"):
        assert accepts(f"so: 1 < 2 {end}\n\n{answer}", begun)
        assert accepts(f"so {answer}{end}{answer}", begun)
        assert not accepts(answer, begun)
        assert not accepts(f"so{end}{BLANKS}{answer}", begun)
        assert not accepts(f"so{end}so{end}{answer}", begun)
        assert not accepts(f"so{end}", begun)
    for not_begun in ("", "<think>\n\n</think>\n\n"):
        assert accepts(answer, not_begun)
        assert not accepts(f"so{end}{answer}", not_begun)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "array", "uniqueItems": True}, ': keyword "uniqueItems" can\'t be enforced'),
        (
            {"properties": {"any": True, "x": {"not": {}}}},
            '.properties.x: keyword "not" can\'t be enforced',
        ),
        (
            {"properties": {"not": {"properties": {"x": {"not": {}}}}}},
            '.properties.not.properties.x: keyword "not" can\'t be enforced',
        ),
        ({"anyOf": [{}, {"if": {}}]}, '.anyOf[1]: keyword "if" can\'t be enforced'),
        (
            {"type": "array", "contains": {}, "x-guidance": {"lenient": True}},
            ': keyword "contains" can\'t be enforced',
        ),
        (
            {"items": {"type": "foo"}},
            '.items: keyword "type" can\'t be enforced: Invalid type: foo',
        ),
        ({"properties": {"a b": {"$ref": "#/nope"}}}, '.properties["a b"]: keyword "$ref"'),
        ({"$ref": "http://127.0.0.1:1/x"}, ': keyword "$ref" can\'t be enforced'),
        ({"$ref": "#/$defs/x", "$defs": {"x": None}}, ".$defs.x can't be enforced: schema must be"),
        (
            {"items": {"maximum": 10**400}},
            '.items: keyword "maximum" can\'t be enforced: number out',
        ),
        (
            {"required": ["x"], "additionalProperties": False, "type": "object"},
            ': keyword "required"',
        ),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, ': keyword "allOf"'),
        ({"type": "string", "pattern": "(?=a)"}, ': keyword "pattern" can\'t be enforced'),
        (
            {"items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"anyOf": [{"pattern": "(?<!a)b"}]}}},
            '.$defs.x.anyOf[0]: keyword "pattern" can\'t be enforced',
        ),
        (
            {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"not": {}}}},
            '.properties.b: keyword "not" can\'t be enforced',
        ),
        (
            {"properties": {"x": {"oneOf": [{"type": "object"}, {"minProperties": 1}]}}},
            '.properties.x: keyword "oneOf" can\'t be enforced: more than one of its schemas may '
            "match",
        ),
        (
            {
                "$id": "https://example.org/x",
                "properties": {"y": {"$ref": "#/$defs/y"}},
                "$defs": {"y": {"properties": {"z": {"pattern": "(?=a)"}}}},
            },
            '.$defs.y.properties.z: keyword "pattern" can\'t be enforced',
        ),
        (
            {
                "properties": {"x": {"$ref": "#/$defs/x"}},
                "$defs": {"x": {"$id": "x", "type": "string", "oneOf": [{"enum": ["a"]}, {}]}},
            },
            '.$defs.x: keyword "oneOf" can\'t be enforced: more than one of its schemas may match',
        ),
        (
            {
                "properties": {
                    "x": {
                        "additionalProperties": {"oneOf": [{"$ref": "#/$defs/a"}]},
                        "items": {"oneOf": [{"$ref": "#/$defs/a"}]},
                    }
                },
                "$defs": {
                    "a": {"oneOf": [{}, {"properties": {"y": {"items": {"$ref": "#/$defs/b"}}}}]},
                    "b": {"$ref": "#", "required": []},
                },
            },
            '.$defs.a: keyword "oneOf" can\'t be enforced: more than one of its schemas may match',
        ),
    ],
)
def test_a_schema_that_can_not_be_enforced_says_where(
    compiler: GrammarCompiler, schema: Any, problem: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        compiler.compile(of_schema(schema))
    assert str(caught.value).startswith(f"response_format{problem}")
    assert caught.value.param == "response_format"


NULL = {"type": "null"}
DEAD_END = {
    "type": "object",
    "properties": {"a": NULL, "b": NULL},
    "required": ["a", "b"],
    "additionalProperties": False,
    "patternProperties": {"^[ac]$": NULL},
}


def test_a_pattern_of_a_member_that_is_listed_is_refused(compiler: GrammarCompiler) -> None:
    for schema, path in (
        (DEAD_END, ""),
        ({"items": {"$ref": "#/$defs/x"}, "$defs": {"x": DEAD_END}}, ".$defs.x"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            compiler.compile(of_schema(schema))
        assert str(caught.value) == (
            f'response_format{path}: keyword "patternProperties" can\'t be enforced: "^[ac]$" '
            'matches "a", which properties has'
        )
    compiler.compile(of_schema(DEAD_END | {"patternProperties": {"^c$": NULL}}))


def test_an_answer_that_nothing_can_complete_is_an_error(llm: LLM) -> None:
    options = {"x-guidance": {"whitespace_flexible": False}}
    schema = json.dumps(DEAD_END | {"patternProperties": {"^a$": NULL}} | options)
    grammar = Grammar("grammar", f"start: %json {schema}")
    comma = llm.engine.tokenizer.encode(",", add_special_tokens=False)
    sampling = SamplingParams(max_tokens=60, seed=1, logit_bias={comma[-1]: 100.0}, grammar=grammar)
    before = llm.stats().grammar_dead_ends
    matcher = llm.engine.grammars.compile(grammar)
    llm.engine.add_request(GenerationRequest("dead", (1,), sampling), [1], matcher=matcher)
    items = run(llm.engine)
    assert isinstance(items["dead"][-1], DeadEndError)
    assert llm.stats().grammar_dead_ends == before + 1
    llm.engine.check_integrity()


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", "(a"),
        Grammar("regex", "(?=a)b"),
        Grammar("grammar", "start: foo"),
        Grammar("grammar", "root ::= foo"),
        Grammar("grammar", ""),
        Grammar("grammar", "root ::= " + "(" * 5000),
    ],
)
def test_a_grammar_that_is_none(compiler: GrammarCompiler, grammar: Grammar) -> None:
    with pytest.raises(InvalidRequestError, match=r"^grammar can't be enforced: "):
        compiler.compile(grammar)


@fuzz(50)
@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5))
def test_choices_are_taken_literally(compiler: GrammarCompiler, choices: list[str]) -> None:
    choices = [choice for choice in choices if choice.isprintable()] or ["."]
    grammar = Grammar("choice", json.dumps(choices))
    for choice in choices:
        matcher = compiler.compile(grammar)
        for byte in choice.encode():
            matcher.advance(byte)
