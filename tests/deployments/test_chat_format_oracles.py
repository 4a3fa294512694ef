"""Whole calls, read as other people's parsers of the same formats read them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.protocol.chat_formats.events import (
    CallArguments,
    CallStart,
    Reasoning,
    Text,
)
from deployments.protocol.chat_formats.formats import FORMATS
from deployments.protocol.chat_formats.reader import AnswerReader
from deployments.protocol.chat_formats.tool import Tool
from tests.support.deployments.chat_answers import ANSWERS, parts_of
from tests.support.fuzzing import fuzz

pytestmark = pytest.mark.serve

PARSERS = {
    "hermes": "json_tools",
    "qwen3_coder": "qwen3_coder",
    "glm4_moe": "glm47",
    "minimax_m2": "minimax_m2",
    "mistral_v11": "mistral",
    "kimi_k2": "kimi_k2",
    "lfm2": "pythonic",
    "pythonic": "pythonic",
    "gemma4": "gemma4",
    "function_gemma": "function_gemma",
}
PARAMETERS = {"a": {"type": "string"}, "n": {"type": "integer"}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": PARAMETERS}}}
    for name in ("f", "g")
]


def our_calls(name: str, text: str) -> list[dict[str, Any]]:
    reader = AnswerReader(
        FORMATS[name],
        tools={one: Tool(one, {"properties": PARAMETERS}) for one in ("f", "g")},
    )
    calls: list[dict[str, Any]] = []
    for event in [*reader.feed(text), *reader.finish()]:
        if isinstance(event, CallStart):
            calls.append({"name": event.name, "arguments": ""})
        elif isinstance(event, CallArguments):
            calls[-1]["arguments"] += event.json
    return [{**call, "arguments": json.loads(call["arguments"])} for call in calls]


def their_calls(name: str, text: str) -> list[dict[str, Any]]:
    parser = importlib.import_module(f"mlx_lm.tool_parsers.{PARSERS[name]}")
    start, end = parser.tool_call_start, parser.tool_call_end
    calls: list[dict[str, Any]] = []
    # They are given what follows a thought.
    text = text.rpartition("</think>")[2]
    for part in text.split(start)[1:] if start in text else [text]:
        found = parser.parse_tool_call(part.partition(end)[0] if end else part, TOOLS)
        for one in found if isinstance(found, list) else [found]:
            calls.append({"name": one["name"], "arguments": one["arguments"]})
    return calls


@pytest.mark.parametrize("name", PARSERS)
def test_what_mlx_lm_reads_is_read(name: str) -> None:
    wanted = [CallStart("f"), CallStart("g")]
    texts = [
        text
        for one, text, events in ANSWERS
        if one == name and [e for e in events if isinstance(e, CallStart)] == wanted
    ]
    assert texts
    for text in texts:
        assert our_calls(name, text) == their_calls(name, text)


HARMONY = Path(__file__).parent / "recorded" / "harmony.jsonl"


@pytest.mark.parametrize("line", HARMONY.read_text().splitlines())
def test_what_openai_harmony_reads_is_read(line: str) -> None:
    recorded = json.loads(line)
    texts: dict[type, list[str]] = {Text: [], Reasoning: []}
    calls = []
    for channel, recipient, text in recorded["messages"]:
        if recipient and recipient.startswith("functions."):
            calls.append((recipient.removeprefix("functions."), text or "{}"))
        elif text:
            texts[Reasoning if channel == "analysis" else Text].append(text)
    reader = AnswerReader(FORMATS["harmony"])
    events = [event for one in recorded["text"] for event in reader.feed(one)]
    found_calls, found_texts = parts_of([*events, *reader.finish()])
    assert found_calls == calls
    assert found_texts == {kind: "\n".join(said) for kind, said in texts.items()}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab 'é{},:\n", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab_", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@fuzz(150)
@given(st.dictionaries(st.text("ab_", min_size=1, max_size=3), VALUES, max_size=3))
def test_any_value_in_a_languages_own_notation_is_read(arguments: dict[str, Any]) -> None:
    python = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    for name, text in (
        ("lfm2", f"<|tool_call_start|>[f({python})]<|tool_call_end|>"),
        ("pythonic", f"[f({python})]"),
        ("olmo3", f"<function_calls>\nf({python})\n</function_calls>"),
        ("gemma4", f"<|tool_call>call:f{_in_gemma(arguments)}<tool_call|>"),
    ):
        assert our_calls(name, text) == [{"name": "f", "arguments": arguments}]
        if name in PARSERS:
            assert their_calls(name, text) == our_calls(name, text)


def _in_gemma(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            members = (f"{key}:{_in_gemma(member)}" for key, member in value.items())
            return f"{{{','.join(members)}}}"
        case list():
            return f"[{','.join(map(_in_gemma, value))}]"
    return json.dumps(value)
