"""Grammars of required calls: they let what the reader reads, and nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from deployments.protocol.chat_formats.events import CallArguments, CallStart, Reasoning
from deployments.protocol.chat_formats.formats import FORMATS
from deployments.protocol.chat_formats.grammar import content_grammar, tools_grammar
from deployments.protocol.chat_formats.messages import MARKERS
from deployments.protocol.chat_formats.reader import AnswerReader, ChatFormat
from deployments.protocol.chat_formats.tool import Tool, UnenforceableError
from tests.support.deployments.chat_answers import ANSWERS
from tests.support.deployments.chat_grammars import opening_of, vocabulary_with
from tests.support.fuzzing import EVERY_EXAMPLE

SINGLE = {"llama3_json"}
WITH_CALLS = sorted(name for name, one in FORMATS.items() if one.calls)
SCHEMA_OF_F = {
    "properties": {"a": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = [Tool("f", SCHEMA_OF_F), Tool("g", {"properties": {}, "additionalProperties": False})]
LOOKUP: dict[str, Any] = {
    "properties": {
        "kind": {"enum": ["x", "y z"]},
        "where": {"$ref": "#/$defs/place"},
        "limit": {"type": "integer", "minimum": 0, "maximum": 99},
        "note": {"type": ["null", "boolean"]},
    },
    "required": ["kind", "where"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"id": {"type": "string", "maxLength": 6}},
            "required": ["id"],
            "additionalProperties": False,
        }
    },
}


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    return vocabulary_with([])


def matcher_of(
    vocabulary: LLTokenizer,
    name: str,
    tools: list[Tool],
    *,
    required: bool = True,
    parallel: bool = True,
    special_tokens: dict[str, int] | None = None,
) -> LLMatcher:
    grammar = tools_grammar(
        FORMATS[name], tools, required=required, parallel=parallel, special_tokens=special_tokens
    )
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def accepts(vocabulary: LLTokenizer, text: str, name: str, tools: list[Tool], **how: Any) -> bool:
    matcher = matcher_of(vocabulary, name, tools, **how)
    token_ids = vocabulary.tokenize_str(text)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


def only_calls(name: str) -> str:
    """What the family writes for f and g, or for f if it calls but one tool at once."""
    wanted = [CallStart("f"), CallStart("g")][: 1 if name in SINGLE else 2]
    for one, text, events in ANSWERS:
        if (
            one == name
            and [e for e in events if isinstance(e, CallStart)] == wanted
            and FORMATS[name].calls[0].start in text
        ):
            return text[_first_call(FORMATS[name], text) :]
    raise AssertionError(f"no answer of {name} has both")


def _first_call(chat_format: ChatFormat, text: str) -> int:
    behind = text.find(chat_format.thinking[1]) if chat_format.thinking else -1
    starts = (*chat_format.wrappers[:1], chat_format.calls[0].start)
    return min(at for one in starts if (at := text.find(one, max(behind, 0))) >= 0)


@pytest.mark.parametrize("name", WITH_CALLS)
def test_what_a_family_writes_is_let(vocabulary: LLTokenizer, name: str) -> None:
    calls = only_calls(name)
    assert accepts(vocabulary, calls, name, TOOLS)
    assert accepts(vocabulary, calls, name, TOOLS, parallel=False) == (name in SINGLE)
    assert not accepts(vocabulary, calls, name, TOOLS[1:])
    assert not accepts(vocabulary, "Text. " + calls, name, TOOLS)
    assert not accepts(vocabulary, "", name, TOOLS)
    assert not accepts(vocabulary, calls[:-1], name, TOOLS)
    for wrong, right in (('"n": 1', '"n": "1"'), (">1<", ">x<"), ("\n1\n", "\nx\n")):
        if wrong in calls:
            assert not accepts(vocabulary, calls.replace(wrong, right), name, TOOLS)
    if thinking := FORMATS[name].thinking:
        assert accepts(vocabulary, f"{thinking[0]}hm{thinking[1]}\n\n{calls}", name, TOOLS)
        assert not accepts(vocabulary, f"hm{thinking[1]}{calls}", name, TOOLS)
        assert not accepts(vocabulary, f"{thinking[0]}hm{thinking[1]}", name, TOOLS)


@pytest.mark.parametrize("are_special", [False, True])
@pytest.mark.parametrize("name", [one for one in WITH_CALLS if FORMATS[one].thinking])
def test_a_call_in_a_thought_ends_it(name: str, are_special: bool) -> None:
    chat_format = FORMATS[name]
    begin, end = chat_format.thinking or ("", "")
    calls = only_calls(name)
    marks = [begin.removesuffix("thought"), end, chat_format.first_marker] if are_special else []
    vocabulary = vocabulary_with(marks)
    ids = {mark: 257 + number for number, mark in enumerate(marks)}
    thought = f"{begin}hm <x"
    for required in (False, True):
        for ends in (False, True):
            grammar = tools_grammar(
                chat_format,
                TOOLS,
                required=required,
                parallel=True,
                special_tokens=ids,
                ends_thoughts=ends,
            )
            matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar))
            for text, is_let in (
                (thought + calls, ends),
                (f"{thought}{end}\n\n{calls}", True),
                (thought, False),
                (thought + calls[:-1], False),
            ):
                matcher.reset()
                tokens = vocabulary.tokenize_str(text, parse_special=True)
                taken = matcher.try_consume_tokens(tokens)
                assert (taken == len(tokens) and matcher.is_accepting()) == is_let, text
    reader = AnswerReader(chat_format, thinks=True)
    events = [*reader.feed(f"hm <x\n{calls}"), *reader.finish()]
    assert events[:2] == [Reasoning("hm <x"), CallStart("f")]
    assert events[-2:] == [CallStart("g"), CallArguments("{}")]
    told = AnswerReader(chat_format, thinks=True, calls_end_thoughts=False)
    assert {*map(type, [*told.feed(f"hm {calls}"), *told.finish()])} == {Reasoning}


@pytest.mark.parametrize("name", WITH_CALLS)
def test_text_goes_before_calls_that_are_not_required(vocabulary: LLTokenizer, name: str) -> None:
    calls = only_calls(name)
    for text in ("", "Text.", "a < b <tool> [TOOL\n", f"{calls[:5]} is how it begins"):
        assert accepts(vocabulary, text, name, TOOLS, required=False)
        assert accepts(vocabulary, text + calls, name, TOOLS, required=False)
        single = accepts(vocabulary, text + calls, name, TOOLS, required=False, parallel=False)
        assert single == (name in SINGLE)
        assert not accepts(vocabulary, text + calls, name, TOOLS[1:], required=False)
        assert not accepts(vocabulary, text + calls + "more", name, TOOLS, required=False)


@pytest.mark.parametrize("name", WITH_CALLS)
def test_markers_that_are_tokens_of_their_own(name: str) -> None:
    chat_format = FORMATS[name]
    calls = only_calls(name)
    (form,) = chat_format.calls
    marks = {form.start, form.end, *chat_format.wrappers, "<｜tool▁sep｜>"} - {""}
    if "｜DSML｜" in form.start:
        marks = {"｜DSML｜"}
    vocabulary = vocabulary_with(sorted(marks))
    ids = {mark: 257 + number for number, mark in enumerate(sorted(marks))}
    tokens = vocabulary.tokenize_str(calls, parse_special=True)
    assert max(tokens) > 256
    for text in ("", "Text. "):
        for tools, parallel in ((TOOLS, True), (TOOLS[:1], True), (TOOLS, False)):
            matcher = matcher_of(
                vocabulary, name, tools, required=False, parallel=parallel, special_tokens=ids
            )
            whole = [*vocabulary.tokenize_str(text), *tokens]
            consumed = matcher.try_consume_tokens(whole)
            is_let = name in SINGLE or (len(tools) == 2 and parallel)
            assert (consumed == len(whole)) == is_let
            assert consumed > len(whole) / 4


@pytest.mark.parametrize("name", WITH_CALLS)
def test_whatever_is_let_is_a_valid_call(vocabulary: LLTokenizer, name: str) -> None:
    draw = random.Random(name)
    for _ in range(20 if EVERY_EXAMPLE else 5):
        tool = Tool("lookup", LOOKUP, is_strict=True)
        matcher = matcher_of(vocabulary, name, [tool], parallel=False)
        text = bytearray()
        # A thought would go on for ever.
        for token_id in vocabulary.tokenize_str(opening_of(name)):
            assert matcher.consume_token(token_id)
            text += vocabulary.decode_bytes([token_id])
        while not matcher.is_accepting():
            assert len(text) < 2000, text
            allowed = matcher.compute_bitmask()
            choices = [i for i in range(256) if allowed[i // 8] >> i % 8 & 1]
            token_id = draw.choice(choices)
            assert matcher.consume_token(token_id)
            text += vocabulary.decode_bytes([token_id])
        reader = AnswerReader(FORMATS[name], tools={"lookup": tool})
        events = [*reader.feed(text.decode()), *reader.finish()]
        assert isinstance(events[0], CallStart)
        assert events[0].name == "lookup"
        arguments = "".join(e.json for e in events[1:] if isinstance(e, CallArguments))
        jsonschema.validate(json.loads(arguments), {"type": "object", **LOOKUP})


HARMONY_CALLS = (
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "x"}',
    ' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"a": "x", "n": 1}<|call|>',
    " to=functions.g<|channel|>commentary json<|message|>{}",
)
THOUGHT = "<|channel|>analysis<|message|>hm <|x<|end|><|start|>assistant"
SAID = "<|channel|>commentary<|message|>Right.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Well."


@pytest.mark.parametrize("has_tokens", [False, True])
def test_messages_are_let_and_only_valid_calls_among_them(has_tokens: bool) -> None:
    marks = sorted(MARKERS) if has_tokens else []
    vocabulary = vocabulary_with(marks)
    ids = {mark: 257 + number for number, mark in enumerate(marks)}

    def is_let(text: str, **how: Any) -> bool:
        matcher = matcher_of(vocabulary, "harmony", TOOLS, special_tokens=ids, **how)
        token_ids = vocabulary.tokenize_str(text, parse_special=True)
        return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()

    for call in HARMONY_CALLS:
        for before in ("", THOUGHT, THOUGHT + THOUGHT):
            assert is_let(before + call, required=True)
            assert is_let(before + call, required=False)
        assert is_let(THOUGHT + SAID + call, required=False)
        assert not is_let(SAID + call, required=True)
        assert not is_let(call.replace("functions.", "functions.no_"), required=False)
        assert not is_let(call.replace("json<", "code<"), required=False)
    assert not is_let(HARMONY_CALLS[0].replace('"x"', "1"), required=False)
    assert is_let(THOUGHT + FINAL, required=False)
    assert is_let(FINAL + "<|return|>", required=False)
    assert not is_let(THOUGHT + FINAL, required=True)
    assert not is_let("Well.", required=False)


@pytest.mark.parametrize(
    ("name", "calls", "texts"),
    [
        (
            "llama3_json",
            ['{"name": "f", "parameters": {"a": "x"}}', '{"name": "g", "parameters": {}}'],
            ['{"name": "Ann", "age": 3}', '{"name"', '{"parameters": {"name": "f"}}', '["name"]'],
        ),
        (
            "pythonic",
            ['[f(a="x")]', "[f(a='x', n=-2), g()]", "[g()]"],
            ["[1, 2]", "[see](http://x)", "[", "See [f(1)]", "f()"],
        ),
    ],
)
def test_an_answer_may_be_calls_without_a_marker(
    vocabulary: LLTokenizer, name: str, calls: list[str], texts: list[str]
) -> None:
    for text in calls:
        assert accepts(vocabulary, text, name, TOOLS, required=True)
        assert accepts(vocabulary, text, name, TOOLS, required=False)
        for wrong in (text.replace("g", "h").replace("f", "h"), text[:-1]):
            assert not accepts(vocabulary, wrong, name, TOOLS, required=True)
        # Otherwise the reader would tell of a call of no tool.
        unknown = text.replace("g", "h").replace("f", "h")
        assert not accepts(vocabulary, unknown, name, TOOLS, required=False)
    for text in texts:
        assert accepts(vocabulary, text, name, TOOLS, required=False)
        assert not accepts(vocabulary, text, name, TOOLS, required=True)


@pytest.mark.parametrize(
    ("name", "let", "refused"),
    [
        (
            "gemma4",
            [
                '{s:<|"|>a"b<|"|>,l:[<|"|>x<|"|>,<|"|><|"|>],o:{i:2,e:<|"|>y<|"|>},b:true}',
                '{s:<|"|><|"|>,l:[]}',
            ],
            ['{s:"a",l:[]}', '{s:<|"|><|"|>,l:[1]}', "{l:[]}", '{s:<|"|><|"|>,l:[],b:True}'],
        ),
        (
            "lfm2",
            [
                """(s='a"b', l=["x", ""], o={"i": 2, "e": "y"}, b=True)""",
                '(s="\\n", l=[], b=false)',
            ],
            ["(s='a'b', l=[])", "(s=1, l=[])", "(s='', l=[1])", "(s='', l=[], b=1)", "(l=[])"],
        ),
    ],
)
def test_a_language_writes_values_its_own_way(
    vocabulary: LLTokenizer, name: str, let: list[str], refused: list[str]
) -> None:
    (form,) = FORMATS[name].calls
    inner = {"type": "object", "properties": {"i": {"type": "integer"}, "e": {"enum": ["y"]}}}
    schema = {
        "properties": {
            "s": {"type": "string"},
            "l": {"type": "array", "items": {"type": "string"}},
            "o": inner,
            "b": {"type": "boolean"},
        },
        "required": ["s", "l"],
    }
    head = f"{form.start}call:t" if name == "gemma4" else f"{form.start}[t"
    tail = form.end if name == "gemma4" else f"]{form.end}"
    for text in let:
        assert accepts(vocabulary, f"{head}{text}{tail}", name, [Tool("t", schema)])
    for text in refused:
        assert not accepts(vocabulary, f"{head}{text}{tail}", name, [Tool("t", schema)])


CONTENT = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


BARE = {
    "llama3_json": '{"name": "f", "parameters": {"a": "x"}}',
    "pythonic": '[f(a="x"), g()]',
}


def accepts_framed(vocabulary: LLTokenizer, frame: str, text: str) -> bool:
    grammars = [{"lark_grammar": frame}, {"json_schema": CONTENT, "name": "content"}]
    matcher = LLMatcher(vocabulary, json.dumps({"grammars": grammars}))
    assert not matcher.is_error(), matcher.get_error()
    token_ids = vocabulary.tokenize_str(text)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", [*WITH_CALLS, "harmony"])
def test_an_answer_is_calls_or_what_it_must_match(vocabulary: LLTokenizer, name: str) -> None:
    chat_format = FORMATS[name]
    frame = tools_grammar(chat_format, TOOLS, required=False, parallel=True, has_content=True)
    final = "<|channel|>final<|message|>" if name == "harmony" else ""
    content = f'{final}{{"name": "Ann", "age": 3}}'
    calls = HARMONY_CALLS[0] if name == "harmony" else only_calls(name)
    thought = THOUGHT if name == "harmony" else "".join(chat_format.thinking or ())
    for text in (content, calls, thought + content, thought + calls):
        assert accepts_framed(vocabulary, frame, text)
    for text in ("", f"{final}Text.", content + calls, "Text." + calls, content[:-1]):
        assert not accepts_framed(vocabulary, frame, text)
    assert not accepts_framed(vocabulary, frame, content.replace("3", '"3"'))
    if bare := BARE.get(name):
        assert accepts_framed(vocabulary, frame, bare)
        assert not accepts_framed(vocabulary, frame, bare.replace("f", "h"))


@pytest.mark.parametrize("name", ["thinking", "hermes", "gemma4", "harmony"])
def test_what_it_must_match_may_follow_a_thought(vocabulary: LLTokenizer, name: str) -> None:
    chat_format = FORMATS[name]
    frame = content_grammar(chat_format, {})
    begin, end = chat_format.thinking or ("", "")
    thought = f"{begin}\nhm {{\n{end}\n\n" if begin else THOUGHT
    final = "" if begin else "<|channel|>final <|constrain|>json<|message|>"
    content = f'{final}{{"name": "Ann", "age": 3}}'
    assert accepts_framed(vocabulary, frame, content)
    assert accepts_framed(vocabulary, frame, thought + content)
    for text in (thought, thought + "Text.", f"Text.{content}", content + "more"):
        assert not accepts_framed(vocabulary, frame, text)
    if begin:
        # More blanks than a model needs: some would write them for ever.
        assert not accepts_framed(vocabulary, frame, thought + "\n" * 7 + content)
    assert content_grammar(FORMATS["mistral"], {})
    assert not content_grammar(FORMATS["plain"], {})
    assert not content_grammar(FORMATS["pythonic"], {})


def test_a_schema_of_a_strict_tool_is_refused_and_of_another_followed_as_far_as_it_goes(
    vocabulary: LLTokenizer,
) -> None:
    schema = {"properties": {"a": {"type": "array", "uniqueItems": True}}}
    matcher_of(vocabulary, "hermes", [Tool("f", schema)])
    strict = Tool("f", schema, is_strict=True)
    grammar = tools_grammar(FORMATS["hermes"], [strict], required=True, parallel=True)
    assert "uniqueItems" in LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar)).get_error()
    bounded = Tool("f", {"properties": {"a": {"type": "string", "maxLength": 3}}}, is_strict=True)
    with pytest.raises(
        UnenforceableError, match=r'^parameters\.properties\.a: keyword "maxLength"'
    ):
        tools_grammar(FORMATS["qwen3_coder"], [bounded], required=True, parallel=True)
