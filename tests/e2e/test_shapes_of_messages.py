"""What llama.cpp's server is held to of Responses and Messages, as far as OpenAI and Anthropic say
the same: shapes alone, of a model with random weights."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from tests.support.deployments import openai_types
from tests.support.deployments.gateway_harness import Running
from tests.support.deployments.messages_api import check_order, checked_events, checked_message
from tests.support.e2e.shaped_model import streamed, told

pytestmark = pytest.mark.asyncio(loop_scope="module")
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
BOOK = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best?"}]
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {
    "name": "get_weather",
    "description": "Of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"location": {"type": "string", "maxLength": 12}},
        "required": ["location"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"type": "json_schema", "name": "test", "schema": {"const": "foooooo"}}, '"foooooo"'),
        ({"type": "json_object"}, "{"),
        ({"type": "text"}, ""),
    ],
)
async def test_a_response_has_the_form_that_is_asked_for(
    shaped: Running, form: dict[str, Any], text: str
) -> None:
    fields = {"input": "Write an example", "max_output_tokens": 10, "text": {"format": form}}
    body = await told(shaped.client, RESPONSES, model="demo", **fields)
    openai_types.response(body)
    (message,) = body["output"]
    assert (message["type"], message["content"][0]["type"]) == ("message", "output_text")
    assert message["content"][0]["text"].startswith(text)


async def test_a_response_whole_and_streamed_has_its_ids(shaped: Running) -> None:
    fields = {"model": "demo", "input": BOOK, "max_output_tokens": 8, "temperature": 0.0}
    whole = await told(shaped.client, RESPONSES, **fields)
    assert whole["id"].startswith("resp_")
    assert whole["output"][0]["id"].startswith("msg_")

    events = await streamed(shaped.client, RESPONSES, **fields)
    for event in events:
        openai_types.response_event(event)
    by_type = defaultdict(list)
    for event in events:
        by_type[event["type"]].append(event)
    last = events[-1]["response"]
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    (added,) = by_type["response.output_item.added"]
    assert added["item"]["id"].startswith("msg_")
    for name in ("response.created", "response.in_progress"):
        assert by_type[name][0]["response"]["id"] == last["id"]
    parts = [event for event in events if "item_id" in event]
    assert {event["item_id"] for event in parts} == {added["item"]["id"]}
    assert by_type["response.output_item.done"][0]["item"]["id"] == added["item"]["id"]
    text = "".join(event["delta"] for event in by_type["response.output_text.delta"])
    assert text == last["output"][0]["content"][0]["text"]
    assert text == whole["output"][0]["content"][0]["text"]


async def message(running: Running, **fields: Any) -> dict[str, Any]:
    asked = {"model": "demo", "max_tokens": 12, "messages": HELLO, **fields}
    return checked_message(await told(running.client, MESSAGES, **asked))


async def events_of(running: Running, **fields: Any) -> list[dict[str, Any]]:
    asked = {"model": "demo", "max_tokens": 12, "messages": HELLO, "stream": True, **fields}
    response = await running.client.post(MESSAGES, json=asked)
    assert response.status_code == 200, response.text
    events = checked_events(response.text)
    check_order(events)
    return events


def turn(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


CALL = {"type": "tool_use", "id": "tool_1", "name": "get_weather", "input": {"location": "Paris"}}
RESULT = {"type": "tool_result", "tool_use_id": "tool_1", "content": "Sunny, 25°C"}
ASKED: dict[str, dict[str, Any]] = {
    "a user": {},
    "a system prompt": {"system": "You are a helpful assistant."},
    "blocks": {"messages": [turn("user", text("What is"), text(" the answer?"))]},
    "turns": {
        "messages": [*HELLO, {"role": "assistant", "content": "Hi there!"}, *HELLO],
    },
    "a result": {"messages": [*HELLO, turn("assistant", CALL), turn("user", RESULT)]},
    "a result and text": {
        "messages": [*HELLO, turn("assistant", CALL), turn("user", RESULT, text("Go on."))]
    },
    "text and a result": {
        "messages": [*HELLO, turn("assistant", CALL), turn("user", text("Here:"), RESULT)]
    },
    "a failure": {
        "messages": [*HELLO, turn("assistant", CALL), turn("user", RESULT | {"is_error": True})]
    },
    "stop sequences": {"stop_sequences": ["\n", "END"]},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 40},
    "metadata": {"metadata": {"user_id": "test_user_123"}},
}


async def test_messages_are_answered(shaped: Running) -> None:
    for name, fields in ASKED.items():
        body = await message(shaped, **fields)
        assert (body["type"], body["role"]) == ("message", "assistant")
        assert body["stop_reason"] in ("end_turn", "max_tokens", "stop_sequence"), name
        assert [block["type"] for block in body["content"]] == ["text"], name
        usage = body["usage"]
        assert usage["output_tokens"] > 0
        for count in ("input_tokens", "cache_read_input_tokens", "output_tokens"):
            assert isinstance(usage[count], int)


async def test_a_message_is_streamed(shaped: Running) -> None:
    start, *_, delta, _ = events = await events_of(shaped)
    begun = start["message"]
    assert (begun["type"], begun["role"], begun["content"]) == ("message", "assistant", [])
    usage = begun["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] > 0
    of_blocks = [event for event in events if event["type"].startswith("content_block")]
    assert {event["index"] for event in of_blocks} == {0}
    assert of_blocks[0]["content_block"]["type"] == "text"
    assert {event["delta"]["type"] for event in of_blocks[1:-1]} == {"text_delta"}
    assert delta["delta"]["stop_reason"] in ("end_turn", "max_tokens")
    assert delta["usage"]["output_tokens"] > 0


async def test_a_tool_is_used_whole_and_streamed(shaped: Running) -> None:
    fields = {"tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": 400}
    one = {"type": "any", "disable_parallel_tool_use": True}
    for choice in ({"type": "any"}, one, {"type": "tool", "name": "get_weather"}):
        body = await message(shaped, **fields | {"tool_choice": choice, "temperature": 0.0})
        assert body["stop_reason"] == "tool_use"
        for block in body["content"]:
            assert (block["type"], block["name"]) == ("tool_use", "get_weather")
            assert block["id"]
            assert isinstance(block["input"]["location"], str)

    events = await events_of(shaped, **fields | {"tool_choice": one})
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [event["index"] for event in starts] == [0]
    assert starts[0]["content_block"]["name"] == "get_weather"
    pieces = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert {piece["type"] for piece in pieces} == {"input_json_delta"}
    written = json.loads("".join(piece["partial_json"] for piece in pieces))
    assert written.keys() == {"location"}


async def test_tokens_are_counted_without_a_bound_for_the_answer(shaped: Running) -> None:
    counted = []
    for fields in ({}, {"system": "You are a helpful assistant."}, {"tools": [WEATHER]}):
        body = await told(
            shaped.client, f"{MESSAGES}/count_tokens", model="demo", messages=HELLO, **fields
        )
        assert body.keys() == {"input_tokens"}
        counted.append(body["input_tokens"])
    assert 0 < counted[0] < min(counted[1:])


async def test_the_same_chat_in_the_shapes_of_both(shaped: Running) -> None:
    asked = {"model": "demo", "messages": HELLO, "max_tokens": 8, "temperature": 0.0}
    chat = await told(shaped.client, "/v1/chat/completions", **asked)
    of_messages = await told(shaped.client, MESSAGES, **asked)
    assert (chat["object"], of_messages["type"]) == ("chat.completion", "message")
    assert chat["choices"][0]["message"]["content"] == of_messages["content"][0]["text"]
    usage = of_messages["usage"]
    assert (
        chat["usage"]["prompt_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    )
    assert chat["usage"]["completion_tokens"] == usage["output_tokens"]
