"""One reader for tool calls and thoughts: whole, cut anywhere, cut short, and malformed."""

from __future__ import annotations

import json
from itertools import chain, takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.protocol.chat_formats.dialect import markers
from deployments.protocol.chat_formats.events import (
    CallArguments,
    CallStart,
    Event,
    Reasoning,
    Text,
)
from deployments.protocol.chat_formats.formats import FORMATS
from deployments.protocol.chat_formats.reader import AnswerReader
from deployments.protocol.chat_formats.tool import Tool
from tests.support.deployments.chat_answers import ANSWERS, call, parts_of
from tests.support.fuzzing import fuzz

TOOLS = {
    "f": Tool("f", {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}),
    "search": Tool("search", {"properties": {"query": {"type": "string"}}}),
}


def read(name: str, pieces: list[str], **how: Any) -> list[Event]:
    reader = AnswerReader(FORMATS[name], tools=TOOLS, **how)
    events = [event for piece in pieces for event in reader.feed(piece)]
    return merged([*events, *reader.finish()])


def merged(events: list[Event]) -> list[Event]:
    whole: list[Event] = []
    for event in events:
        match event, whole[-1:]:
            case (Text(text), [Text(before)]):
                whole[-1] = Text(before + text)
            case (Reasoning(text), [Reasoning(before)]):
                whole[-1] = Reasoning(before + text)
            case (CallArguments(text), [CallArguments(before)]):
                whole[-1] = CallArguments(before + text)
            case _:
                whole.append(event)
    return whole


@pytest.mark.parametrize(("name", "text", "events"), ANSWERS)
def test_an_answer_is_read(name: str, text: str, events: list[Event]) -> None:
    assert read(name, [text]) == events
    assert read(name, list(text)) == events
    for at in range(len(text)):
        assert read(name, [text[:at], text[at:]]) == events


def test_a_thought_that_the_prompt_began() -> None:
    events = read("hermes", ["hm\n", "</think>\n", "Yes."], thinks=True)
    assert events == [Reasoning("hm"), Text("Yes.")]


def test_without_tools_nothing_is_a_call() -> None:
    text = '<think>a</think><tool_call>{"name": "g", "arguments": {}}</tool_call>'
    events = read("hermes", [text], reads_calls=False)
    assert events == [Reasoning("a"), Text(text.removeprefix("<think>a</think>"))]


@fuzz(200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["analysis", "commentary", "final", "call"]),
            st.text(st.sampled_from("ab<|> \n{}é"), min_size=1, max_size=8),
        ),
        max_size=5,
    ),
    st.data(),
)
def test_messages_are_read_whatever_they_say(messages: list[tuple[str, str]], data: Any) -> None:
    texts, events = [], []
    has_said: set[type] = set()
    for channel, body in messages:
        if channel == "call":
            header, end = "<|channel|>commentary to=functions.f json", "<|call|>"
            events += call("f", body)
        else:
            header, end = f"<|channel|>{channel}", "<|end|>"
            kind = Reasoning if channel == "analysis" else Text
            events.append(kind(f"\n{body}" if kind in has_said else body))
            has_said.add(kind)
        texts.append(f"{header}<|message|>{body}{end}")
    text = "<|start|>assistant".join(texts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read("harmony", pieces) == merged(events)


def test_arguments_are_told_as_they_come() -> None:
    reader = AnswerReader(FORMATS["hermes"])
    assert reader.feed('<tool_call>{"name": "g", "arguments": {"a') == [
        CallStart("g"),
        CallArguments('{"a'),
    ]
    assert reader.feed('": "b') == [CallArguments('": "b')]
    tagged = AnswerReader(FORMATS["qwen3_coder"], tools=TOOLS)
    tagged.feed("<tool_call><function=f><parameter=a>\n")
    assert tagged.feed("one") == [CallArguments("one")]
    assert tagged.feed(" two\n") == [CallArguments(" two")]


FRAGMENTS = sorted(
    {
        "<", ">", "{", "}", "[", "]", "(", ")", '"', "'", '"""', ":", ",", "=", "\\", " ", "\n",
        "a", "1", "é", "null", "None", "f(", "g()", "call:f{", "a:", "a=", "x", "u00e9", "ud83d",
        '{"name": "f", "arguments": ', '{"name"', '"arguments"', '"parameters"', "f\n",
        "```json\n", "```", "to=functions.f", "assistant", "analysis", "commentary", "final",
        ' string="true">', ' string="false">', "f", ">\n",
        *(one for chat_format in FORMATS.values() for one in markers(chat_format)),
    }
)  # fmt: skip


@fuzz(500)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.sampled_from(FRAGMENTS), max_size=25),
    st.sampled_from([text for _, text, _ in ANSWERS]),
    st.booleans(),
    st.data(),
)
def test_any_text_is_the_same_however_it_is_cut(
    name: str, fragments: list[str], answer: str, thinks: bool, data: Any
) -> None:
    thinks &= FORMATS[name].thinking is not None
    start = data.draw(st.integers(0, len(answer)))
    text = answer[:start] + "".join(fragments) + answer[start:]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(name, [text], thinks=thinks)
    assert read(name, pieces, thinks=thinks) == whole
    assert read(name, list(text), thinks=thinks) == whole
    if name != "harmony" and not any(isinstance(event, CallStart) for event in whole):
        said = "".join(e.text for e in whole if isinstance(e, (Text, Reasoning)))
        assert visible(said, name) == visible(text, name)


@pytest.mark.parametrize(("name", "text", "events"), ANSWERS)
def test_an_answer_that_is_cut_keeps_what_it_had(name: str, text: str, events: list[Event]) -> None:
    """Wherever it is cut: a part of a marker, or of a header, is all that may be more or less."""
    whole_calls, whole_texts = parts_of(events)
    longest = max(map(len, markers(FORMATS[name])), default=0)
    for end in range(len(text)):
        reader = AnswerReader(FORMATS[name], tools=TOOLS)
        begun = reader.feed(text[:end])
        cut = merged([*begun, *reader.finish()])
        calls, _ = parts_of(cut)
        for (function, arguments), (whole_function, whole_arguments) in zip(
            calls, whole_calls, strict=False
        ):
            assert function == whole_function
            pairs = zip(arguments, whole_arguments, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            assert len(arguments) - same <= longest
        if not calls:
            told = "".join(e.text for e in cut if isinstance(e, (Text, Reasoning)))
            assert name == "harmony" or visible(told, name) == visible(text[:end], name)
        for kind, told in parts_of(begun)[1].items():
            assert whole_texts[kind].startswith(told)


def visible(text: str, name: str) -> str:
    """Without white space, and without markers that mean nothing outside calls."""
    chat_format = FORMATS[name]
    meaningless = (chat_format.wrappers, chat_format.thinking or (), chat_format.answer or ())
    for marker in chain.from_iterable(meaningless):
        text = text.replace(marker, "")
    return "".join(text.split())


@fuzz(100)
@given(
    st.dictionaries(st.text(max_size=6), st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=6,
    ), max_size=4),
    st.booleans(),
)  # fmt: skip
def test_any_arguments_come_back(arguments: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(arguments, ensure_ascii=ascii_only)
    for name, answer in (
        ("hermes", f'<tool_call>\n{{"name": "f", "arguments": {text}}}\n</tool_call>'),
        ("mistral_v11", f"[TOOL_CALLS]f[ARGS]{text}"),
    ):
        assert read(name, list(answer)) == call("f", text)
