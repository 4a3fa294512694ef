"""One reader for tool calls and thoughts: whole, cut anywhere, cut short, and malformed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.protocol.chat_formats.events import (
    CallArguments,
    CallStart,
    Event,
    Reasoning,
    Text,
)
from deployments.protocol.chat_formats.formats import FORMATS
from deployments.protocol.chat_formats.reader import AnswerReader

STRINGS = {("f", "a"), ("search", "query")}


def is_string(tool: str, parameter: str) -> bool | None:
    return (tool, parameter) in STRINGS or None if parameter != "n" else False


def read(name: str, pieces: list[str], **how: Any) -> list[Event]:
    reader = AnswerReader(FORMATS[name], is_string=is_string, **how)
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


def call(name: str, arguments: str) -> list[Event]:
    return [CallStart(name), CallArguments(arguments)]


TWO = '{"a": "x<y \\"q\\" é", "n": 1}'
NONE = "{}"

ANSWERS: list[tuple[str, str, list[Event]]] = [
    ("plain", " <tool_call> is text\n", [Text(" <tool_call> is text\n")]),
    ("plain", "", []),
    ("hermes", "Hello <b>you</b>! \n", [Text("Hello <b>you</b>! \n")]),
    (
        "hermes",
        "<think>\nhm <tool_call>?\n</think>\n\nSee:\n\n<tool_call>\n"
        f'{{"name": "f", "arguments": {TWO}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        [Reasoning("hm <tool_call>?"), Text("See:"), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"b": [1, {"c": "}"}]}, "name": "g"}</tool_call> done.',
        [*call("g", '{"b": [1, {"c": "}"}]}'), Text("done.")],
    ),
    ("hermes", '<tool_call>{"name": "g"}</tool_call>', call("g", NONE)),
    (
        "hermes",
        '<tool_call>{"name": "g", "arguments": "{\\"a\\": 1}", "id": [7]}</tool_call>',
        call("g", '{"a": 1}'),
    ),
    (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "g", "parameters": {"a": 1}}}'
        "</tool_call>",
        call("g", '{"a": 1}'),
    ),
    # What only looks like a call.
    ("hermes", "Use <tool_call> tags.", [Text("Use <tool_call> tags.")]),
    ("hermes", "<tool_call>\n[]\n</tool_call>", [Text("<tool_call>\n[]\n</tool_call>")]),
    (
        "hermes",
        'a\n<tool_call>{"nome": 1}</tool_call>',
        [Text('a\n<tool_call>{"nome": 1}</tool_call>')],
    ),
    (
        "hermes",
        '<tool_call><tool_call>{"name": "g", "arguments": {}}</tool_call>',
        [Text("<tool_call>"), *call("g", NONE)],
    ),
    # A call that ends badly.
    ("hermes", '<tool_call>{"name": "g", "arguments": {"a": "x', call("g", '{"a": "x')),
    ("hermes", '<tool_call>{"name": "g", "argu', call("g", NONE)),
    (
        "hermes",
        '<tool_call>{"name": "g", "arguments": {"a": 1}</tool_call> sorry',
        [*call("g", '{"a": 1}'), Text("sorry")],
    ),
    (
        "hermes",
        '<tool_call>{"name": "g", "arguments": {"a": 1</tool_call> sorry',
        [*call("g", '{"a": 1'), Text("sorry")],
    ),
    ("hermes", "<think>I never end", [Reasoning("I never end")]),
    (
        "qwen3_coder",
        'On it.\n<tool_call>\n<function=f>\n<parameter=a>\nx<y "q" é\n</parameter>\n'
        "<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n"
        "</function>\n</tool_call>",
        [Text("On it."), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "qwen3_coder",
        "<tool_call><function=search><parameter=query>\n\n  two\nlines\n\n</parameter>"
        '<parameter=deep>{"x": [1, 2]}</parameter><parameter=word>maybe</parameter>'
        "</function></tool_call>",
        call(
            "search",
            '{"query": "\\n  two\\nlines\\n", "deep": {"x": [1, 2]}, "word": "maybe"}',
        ),
    ),
    ("qwen3_coder", "<tool_call>\n<fun", [Text("<tool_call>\n<fun")]),
    (
        "glm4_moe",
        '<think>so</think>\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x<y "q" é</arg_value>\n'
        "<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call><tool_call>g</tool_call>",
        [Reasoning("so"), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">x<y "q" é</parameter>\n'
        '<parameter name="n">1</parameter>\n</invoke>\n<invoke name="g">\n</invoke>\n'
        "</minimax:tool_call>",
        [*call("f", TWO), *call("g", NONE)],
    ),
    (
        "mistral",
        f'Well.[TOOL_CALLS][{{"name": "f", "arguments": {TWO}, "id": "123456789"}}, '
        '{"name": "g", "arguments": {}}]',
        [Text("Well."), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "mistral_v11",
        f"[THINK]hm[/THINK][TOOL_CALLS]f[ARGS]{TWO}[TOOL_CALLS]g[ARGS]{{}}",
        [Reasoning("hm"), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        f"{TWO}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n"
        "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [*call("f", TWO), *call("g", NONE)],
    ),
    (
        "deepseek_v3_1",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{TWO}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [*call("f", TWO), *call("g", NONE)],
    ),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        f"{TWO}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        [*call("f", TWO), *call("g", NONE)],
    ),
]


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


def test_arguments_are_told_as_they_come() -> None:
    reader = AnswerReader(FORMATS["hermes"])
    assert reader.feed('<tool_call>{"name": "g", "arguments": {"a') == [
        CallStart("g"),
        CallArguments('{"a'),
    ]
    assert reader.feed('": "b') == [CallArguments('": "b')]
    tagged = AnswerReader(FORMATS["qwen3_coder"], is_string=is_string)
    tagged.feed("<tool_call><function=f><parameter=a>\n")
    assert tagged.feed("one") == [CallArguments("one")]
    assert tagged.feed(" two\n") == [CallArguments(" two")]


FRAGMENTS = sorted(
    {
        "<", ">", "{", "}", "[", "]", '"', ":", ",", "\\", " ", "\n", "a", "1", "é", "null",
        '{"name": "f", "arguments": ', '{"name"', '"arguments"', "f\n", "```json\n", "```",
        "<think>", "</think>", "[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]",
        "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>",
        "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
        '<invoke name="f">', "</invoke>", '<parameter name="a">', "<minimax:tool_call>",
        "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
        "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    }
)  # fmt: skip


@settings(max_examples=500, deadline=None)
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
    if not any(isinstance(event, CallStart) for event in whole):
        said = "".join(e.text for e in whole if isinstance(e, (Text, Reasoning)))
        assert visible(said, name) == visible(text, name)


def visible(text: str, name: str) -> str:
    """Without white space, and without markers that mean nothing outside calls."""
    chat_format = FORMATS[name]
    for marker in (*chat_format.wrappers, *(chat_format.thinking or ())):
        text = text.replace(marker, "")
    return "".join(text.split())


@settings(max_examples=100, deadline=None)
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
