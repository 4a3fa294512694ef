"""A message, however its text comes: the events add up to the whole."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from deployments.backend import Delta
from deployments.protocol import ChatCompletionRequest, ParsedRequest
from deployments.protocol.anthropic.conversion import to_chat
from deployments.protocol.anthropic.request import MessagesRequest
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.replica.fold import Usage
from deployments.replica.render import Renderer, renderer_for
from deployments.wire.envelope import Envelope
from tests.support.deployments.messages_api import (
    TOOLS,
    body,
    check_order,
    checked_events,
    checked_message,
)
from tests.support.deployments.scripted_backend import ANSWER, HERMES
from tests.support.fuzzing import fuzz

ENVELOPE = Envelope.seal()
DIALECT = Dialect.of(HERMES, {"<think>": 1}, frozenset())
ANSWERS = (
    ANSWER,
    ANSWER * 2,
    "Plain.",
    "",
    "<think>\nOnly this.",
    ANSWER[: ANSWER.index("ln <b>")],
    "<tool_call>\nno call\n</tool_call>",
)


def renderer() -> Renderer:
    asked = MessagesRequest.parse(body(tools=TOOLS))
    form = to_chat(asked)
    assert isinstance(form, ChatCompletionRequest)
    return renderer_for(ParsedRequest(form, asked), ENVELOPE, DIALECT)


def deltas(text: str, cuts: list[int]) -> list[Delta]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    return [
        Delta(0, piece, (1,), 5, 2, finish_reason="stop" if last else None)
        for piece, last in zip(pieces, [False] * (len(pieces) - 1) + [True], strict=True)
    ]


def added_up(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for event in events:
        match event:
            case {"type": "content_block_start", "content_block": block}:
                blocks.append(dict(block))
            case {"delta": {"type": "input_json_delta", "partial_json": text}}:
                blocks[-1]["partial"] = blocks[-1].get("partial", "") + text
            case {"type": "content_block_delta", "delta": delta}:
                name = delta["type"].removesuffix("_delta")
                blocks[-1][name] += delta[name]
    return blocks


@fuzz(150)
@given(
    st.sampled_from(ANSWERS),
    st.lists(st.integers(0, 500), max_size=30),
    st.integers(0, 31),
)
def test_a_stream_adds_up_to_the_whole_wherever_it_is_cut(
    text: str, cuts: list[int], num_replayed: int
) -> None:
    whole, stream, first, second = renderer(), renderer(), renderer(), renderer()
    usage = Usage(1)
    told = moved = b""
    for number, delta in enumerate(deltas(text, cuts)):
        usage.add(0, delta)
        whole.add(0, delta)
        told += stream.chunks(0, delta)
        if number < num_replayed:
            moved += first.chunks(0, delta)
            second.replay(0, delta)
        else:
            moved += (first if num_replayed == 0 else second).chunks(0, delta)
    told += stream.end(usage)
    moved += (first if num_replayed == 0 else second).end(usage)
    assert moved == told
    events = checked_events(told.decode())
    check_order(events)
    message = checked_message(json.loads(whole.whole(usage)))
    blocks = added_up(events)
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = from_json(block.pop("partial", "{}"), allow_partial=True)
    assert blocks == message["content"]
    assert events[-2]["usage"] == message["usage"]
    assert events[-2]["delta"]["stop_reason"] == message["stop_reason"]
