"""vLLM's structural tags: what is let, what is not, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from deployments.http.errors import ApiError
from deployments.protocol import ChatCompletionRequest
from tests.support.deployments.chat_grammars import vocabulary_with

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
OBJECT = {"type": "json_schema", "json_schema": {**SCHEMA, "additionalProperties": False}}
TEXT = {"type": "any_text"}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def of(kind: str, **members: Any) -> dict[str, Any]:
    return {"type": kind, **members}


def asked(**fields: Any) -> ChatCompletionRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return ChatCompletionRequest.parse(body)


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    return vocabulary_with([])


TAGS = [tag("<f=a>", OBJECT, "</f>"), tag("<f=ab>", const("!"), ["</f>", "</g>"])]
TRIGGERED = of("triggered_tags", triggers=["<f="], tags=TAGS)
CASES: list[tuple[str, Any, list[str], list[str]]] = [
    ("const", const('a"b'), ['a"b'], ["", "a", 'a"bc']),
    ("schema", OBJECT, ['{"a": 1}'], ['{"a": "x"}', "", '{"a": 1}x']),
    ("any text", TEXT, ["", "x <f= y\n"], []),
    ("text without", of("any_text", excludes=["no"]), ["", "n o"], ["no", "a no b"]),
    ("regex", of("regex", pattern=r"a/\\?b+\n?"), ["a/b", "a/\\bb\n"], ["", "a/"]),
    ("sequence", of("sequence", elements=[const("a"), OBJECT, const("b")]),
     ['a{"a": 2}b'], ["a", '{"a": 2}b', "ab"]),
    ("text up to a string", of("sequence", elements=[TEXT, const("END"), OBJECT]),
     ['x E END{"a": 1}', 'END{"a": 1}'], ['x{"a": 1}', "END", "x"]),
    ("text up to a tag", of("sequence", elements=[TEXT, tag("<t>", TEXT, "</t>"), const(".")]),
     ["hm <t> x < y </t>.", "<t></t>."], ["hm <t>", "<t></t>", "."]),
    ("regex up to a string", of("sequence", elements=[of("regex", pattern=".*"), const("!")]),
     ["a!b!", "!"], ["a", ""]),
    ("or", of("or", elements=[const("yes"), OBJECT, of("regex", pattern="[0-9]+")]),
     ["yes", '{"a": 1}', "12"], ["", "no", "yes1"]),
    ("optional", of("sequence", elements=[of("optional", content=const("a")), const("b")]),
     ["b", "ab"], ["aab", "a"]),
    ("star", of("star", content=const("ab")), ["", "abab"], ["aba"]),
    ("plus", of("plus", content=of("regex", pattern="[a-c],")), ["a,", "a,b,"], ["", "a,b"]),
    ("repeat", of("repeat", min=1, max=2, content=const("x")), ["x", "xx"], ["", "xxx"]),
    ("repeat for ever", of("repeat", min=2, max=-1, content=const("x")), ["xx", "xxxx"], ["x"]),
    ("tag", tag("<", of("any_text", excludes=["z"]), [">", ")"]),
     ["<>", "<ab)"], ["<", "<z>", "<a>>"]),
    ("triggered", TRIGGERED,
     ["", "x < y", 'x<f=a>{"a": 1}</f>', '<f=ab>!</g> and <f=a>{"a": 1}</f>.'],
     ["<f=", "<f=c>", '<f=a>{"a": "1"}</f>', "<f=ab>?</f>"]),
    ("triggered, at least one", {**TRIGGERED, "at_least_one": True},
     ["<f=ab>!</f>", "<f=ab>!</f> x <f=ab>!</g>"], ["", "x", "x<f=ab>!</f>"]),
    ("triggered, one at most", {**TRIGGERED, "stop_after_first": True},
     ["", "x", "x<f=ab>!</f>"], ["<f=ab>!</f> x", "<f=ab>!</f><f=ab>!</f>"]),
    ("triggered, exactly one", {**TRIGGERED, "stop_after_first": True, "at_least_one": True},
     ["<f=ab>!</f>"], ["", "x<f=ab>!</f>", "<f=ab>!</f>x"]),
    ("triggered in a tag", tag("<t>", TRIGGERED, "</t>"),
     ["<t></t>", "<t>x<f=ab>!</f>y</t>"], ["<t>x", "<t><f=c></t>", "<t></t>x"]),
    ("separated", of("tags_with_separator", tags=TAGS, separator=", "),
     ["", '<f=ab>!</f>, <f=a>{"a": 1}</f>'], ["<f=ab>!</f><f=ab>!</f>", ", ", "<f=ab>!</f>, "]),
    ("separated, exactly one",
     of("tags_with_separator", tags=TAGS, separator="", at_least_one=True, stop_after_first=True),
     ["<f=ab>!</f>"], ["", "<f=ab>!</f><f=ab>!</f>"]),
]  # fmt: skip


def lets(vocabulary: LLTokenizer, request: ChatCompletionRequest, text: str) -> bool:
    grammar = request.grammar
    assert grammar is not None
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar.text))
    assert not matcher.is_error(), matcher.get_error()
    token_ids = vocabulary.tokenize_str(text)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("format", "let", "others"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_tag_lets_what_it_says(
    vocabulary: LLTokenizer, format: Any, let: list[str], others: list[str]
) -> None:
    whole = {"type": "structural_tag", "format": format}
    for request in (
        asked(structured_outputs={"structural_tag": json.dumps(whole)}),
        asked(structured_outputs={"structural_tag": whole}),
        asked(response_format=whole),
    ):
        for text in let:
            assert lets(vocabulary, request, text), text
        for text in others:
            assert not lets(vocabulary, request, text), text


def test_the_older_notation(vocabulary: LLTokenizer) -> None:
    structures = [{"begin": "<f=a>", "schema": OBJECT["json_schema"], "end": "</f>"}]
    old = {"structures": structures, "triggers": ["<f="]}
    for request in (
        asked(structured_outputs={"structural_tag": json.dumps(old)}),
        asked(response_format={"type": "structural_tag", **old}),
    ):
        assert lets(vocabulary, request, 'x <f=a>{"a": 1}</f> y')
        assert not lets(vocabulary, request, '<f=a>{"a": "1"}</f>')
        assert request.grammar is not None
        (part,) = request.grammar.parts
        assert part.param.endswith(".structures[0].schema")
    with pytest.raises(ApiError) as caught:
        asked(response_format={"type": "structural_tag", **old, "triggers": ["<g="]})
    assert caught.value.param == "response_format.structures[0].begin"


TAG = "structured_outputs.structural_tag"


@pytest.mark.parametrize(
    ("format", "where", "says"),
    [
        (of("token", token=3), ".format.type", "const_string"),
        ({}, ".format.type", "nothing"),
        (const(""), ".format.value", "non-empty string"),
        (of("any_text", max_tokens=3), ".format.max_tokens", "not supported"),
        (of("grammar", grammar="root ::= x"), ".format.type", "one of"),
        ({**OBJECT, "style": "qwen_xml"}, ".format.style", '"json"'),
        (of("json_schema", json_schema=1), ".format.json_schema", "JSON schema"),
        (of("sequence", elements=[]), ".format.elements", "non-empty array"),
        (of("sequence", elements=[TEXT, OBJECT]), ".format.elements[0]", "followed by"),
        (of("star", content=TEXT), ".format.content", "no end"),
        (of("repeat", min=2, max=1, content=const("a")), ".format.max", "from 2"),
        (tag("a", TEXT, ""), ".format.end", "non-empty string"),
        (of("or", elements=[const("a"), 3]), ".format.elements[1]", "object"),
        ({**TRIGGERED, "triggers": ["<g"]}, ".format.tags[0].begin", "<g"),
        ({**TRIGGERED, "at_least_one": 1}, ".format.at_least_one", "boolean"),
    ],
)
def test_what_can_not_be_enforced_is_refused_by_name(format: Any, where: str, says: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked(structured_outputs={"structural_tag": {"format": format}})
    assert caught.value.param == TAG + where
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"structural_tag": "x"}}, TAG),
        ({"structured_outputs": {"structural_tag": [1]}}, TAG),
        ({"response_format": {"type": "structural_tag"}}, "response_format.format"),
        ({"response_format": {"type": "text", "format": {}}}, "response_format.format"),
        ({"response_format": {"type": "structural_tag", "format": {}, "structures": []}},
         "response_format"),
    ],
)  # fmt: skip
def test_what_is_no_tag(fields: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked(**fields)
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)


def test_a_refused_schema_in_a_tag_has_its_place() -> None:
    format = of("sequence", elements=[const("a"), OBJECT])
    grammar = asked(structured_outputs={"structural_tag": {"format": format}}).grammar
    assert grammar is not None
    (part,) = grammar.parts
    assert part.param == f"{TAG}.format.elements[1].json_schema"
    assert part.schema == OBJECT["json_schema"]
