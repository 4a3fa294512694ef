"""Responses made of any answer, however it comes in pieces."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deployments.backend import Delta
from deployments.protocol import ParsedRequest, parse_request
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.protocol.chat_formats.formats import FORMATS
from deployments.replica.custom_input import CustomInput
from deployments.replica.fold import Usage
from deployments.replica.render import Renderer, renderer_for
from deployments.wire.checkpoint import num_named
from deployments.wire.envelope import Envelope
from tests.support.deployments import openai_types
from tests.support.deployments.added_up import added_up
from tests.support.fuzzing import fuzz

ENVELOPE = replace(Envelope.seal(), answer_id="a" * 32, created=7)
DIALECT = Dialect(FORMATS["hermes"])
REQUEST = parse_request(
    "/v1/responses",
    json.dumps(
        {
            "model": "m",
            "input": "x",
            "tools": [
                {"type": "function", "name": "read"},
                {"type": "custom", "name": "patch"},
            ],
        }
    ).encode(),
)
PIECES = (
    "<think>",
    "</think>",
    "text",
    " é\n",
    '<tool_call>\n{"name": "read", "arguments": {"a": [1, "ü"]}}\n</tool_call>',
    '<tool_call>\n{"name": "patch", "arguments": {"input": "\\u00fc \\ud83c\\udf4e \\n\\""}}\n'
    "</tool_call>",
    '<tool_call>\n{"name": "patch", "arguments": {"other": 1}}\n</tool_call>',
    "<tool_call>",
    '{"name": ',
    "\u2028",
    "🍎",
)
answers = st.lists(st.sampled_from(PIECES), max_size=7).map("".join)
few = fuzz(150)


def renderer(num_events: int = 0) -> Renderer:
    return renderer_for(REQUEST, replace(ENVELOPE, num_events=num_events), DIALECT)


def delta(text: str, *, is_last: bool, replayed: bool = False) -> Delta:
    return Delta(
        index=0,
        text=text,
        token_ids=(7,),
        num_prompt_tokens=1,
        num_cached_tokens=0,
        finish_reason="stop" if is_last else None,
        replayed=replayed,
    )


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def told(stream: bytes) -> list[dict[str, Any]]:
    *parts, done, rest = stream.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    events = [json.loads(part.partition("\ndata: ")[2]) for part in parts]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    for event in events:
        openai_types.response_event(event)
    return events


@few
@given(answers, st.lists(st.integers(0, 400), max_size=12))
def test_streamed_is_whole_and_nothing_is_lost(answer: str, places: list[int]) -> None:
    pieces = cut(answer, places)
    streaming, folding, at_once = renderer(), renderer(), renderer()
    stream = b""
    for number, piece in enumerate(pieces):
        one = delta(piece, is_last=number == len(pieces) - 1)
        stream += streaming.chunks(0, one)
        folding.add(0, one)
    at_once.add(0, delta(answer, is_last=True))
    events = told(stream + streaming.end(Usage(1)))
    body = json.loads(folding.whole(Usage(1)))
    openai_types.response(body)
    assert body["output"] == json.loads(at_once.whole(Usage(1)))["output"]
    assert events[-1]["response"]["output"] == body["output"]
    assert added_up(events[2:-1]) == body["output"]
    as_chat = renderer_for(ParsedRequest(REQUEST.form, REQUEST.form), ENVELOPE, DIALECT)
    as_chat.add(0, delta(answer, is_last=True))
    message = json.loads(as_chat.whole(Usage(1)))["choices"][0]["message"]
    assert said(body["output"], "message") == (message["content"] or "")
    assert said(body["output"], "reasoning") == message.get("reasoning_content", "")
    for call, item in zip(
        message.get("tool_calls", ()),
        (item for item in body["output"] if "call_id" in item),
        strict=True,
    ):
        assert item["call_id"] == call["id"]
        assert item["name"] == call["function"]["name"]
        if item["type"] == "function_call":
            assert item["arguments"] == call["function"]["arguments"]


def said(output: list[dict[str, Any]], kind: str) -> str:
    return "".join(item["content"][0]["text"] for item in output if item["type"] == kind)


@few
@given(answers, st.lists(st.integers(0, 400), max_size=12), st.integers(0, 12))
def test_the_rest_is_the_same_wherever_it_is_made(
    answer: str, places: list[int], num_had: int
) -> None:
    pieces = cut(answer, places)
    num_had = min(num_had, len(pieces) - 1)
    first, second = renderer(), b""
    had = b""
    for number, piece in enumerate(pieces):
        chunk = first.chunks(0, delta(piece, is_last=number == len(pieces) - 1))
        had, second = (had + chunk, second) if number < num_had else (had, second + chunk)
    second += first.end(Usage(1))
    other = renderer(num_named(had))
    if num_had:
        other.replay(0, delta("".join(pieces[:num_had]), is_last=False, replayed=True))
    rest = b""
    for number, piece in enumerate(pieces[num_had:], num_had):
        rest += other.chunks(0, delta(piece, is_last=number == len(pieces) - 1))
    assert timeless(rest + other.end(Usage(1))) == timeless(second)


def timeless(stream: bytes) -> list[str]:
    return [part.partition('"completed_at":')[0] for part in stream.decode().split("\n\n")]


@few
@given(st.text(), st.booleans(), st.lists(st.integers(0, 400), max_size=8))
def test_the_input_of_a_custom_tool_is_read_as_json(
    text: str, is_ascii: bool, places: list[int]
) -> None:
    reader = CustomInput()
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii)
    read = "".join(map(reader.feed, cut(arguments, places))) + reader.finish()
    assert read == text


def test_half_a_pair_of_surrogates_is_no_character() -> None:
    reader = CustomInput()
    assert reader.feed('{"input":"a\\ud83c') == "a"
    assert reader.feed('b\\\\ud83c"}') == "\ufffdb\\ud83c"
