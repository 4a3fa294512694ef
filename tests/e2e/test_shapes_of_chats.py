"""What llama.cpp's server is held to of chats, as far as OpenAI says the same: shapes alone, of a
model with random weights."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.deployments.gateway_harness import Running
from tests.support.e2e.shaped_model import MAX_MODEL_LEN, streamed, told

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
BOOK = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best?"}]
PARTS = [
    {"role": "system", "content": "Book"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "the best?"}],
    },
]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


SUCCESS = tool("test", success={"type": "boolean", "const": True})
PYTHON = tool("python", code={"type": "string", "maxLength": 12, "description": "To run."})


async def chat(running: Running, messages: Any = HELLO, **fields: Any) -> dict[str, Any]:
    asked = {"model": "demo", "messages": messages, "max_tokens": 8, **fields}
    body: dict[str, Any] = await told(running.client, PATH, **asked)
    return body


async def chunks(running: Running, messages: Any = HELLO, **fields: Any) -> list[dict[str, Any]]:
    asked = {"model": "demo", "messages": messages, "max_tokens": 8, **fields}
    return await streamed(running.client, PATH, **asked)


@pytest.mark.parametrize("messages", [HELLO, BOOK, PARTS], ids=["user", "system", "parts"])
async def test_a_chat_whole_and_streamed(shaped: Running, messages: Any) -> None:
    fields = {"temperature": 0.0, "ignore_eos": True}
    body = await chat(shaped, messages, **fields)
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "demo")
    (choice,) = body["choices"]
    assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "length")
    usage = body["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8

    first, *rest, last = await chunks(
        shaped, messages, **fields, stream_options={"include_usage": True}
    )
    *texts, end = rest
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert not any("role" in chunk["choices"][0]["delta"] for chunk in rest)
    assert {chunk["id"] for chunk in (first, *rest, last)} == {first["id"]}
    assert {(chunk["object"], chunk["model"]) for chunk in (first, *rest, last)} == {
        ("chat.completion.chunk", "demo")
    }
    assert {chunk["choices"][0]["finish_reason"] for chunk in texts} <= {None}
    assert end["choices"][0]["finish_reason"] == "length"
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in (first, *rest))
    assert text == choice["message"]["content"]
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == usage["prompt_tokens"]


async def test_usage_is_streamed_for_who_asks(shaped: Running) -> None:
    for chunk in await chunks(shaped):
        assert chunk["choices"]
        assert not chunk.get("usage")


async def test_several_choices(shaped: Running) -> None:
    choices = (await chat(shaped, n=2, ignore_eos=True))["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    for choice in choices:
        assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "length")


def added_calls(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        for part in event["choices"][0]["delta"].get("tool_calls", ()):
            function = part.pop("function")
            call = calls.setdefault(part.pop("index"), {"function": {"arguments": ""}})
            call["function"]["arguments"] += function.pop("arguments")
            call["function"] |= function
            call |= part
    return list(calls.values())


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "python"}}]
)
@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.9}])
async def test_a_required_call_is_one_and_valid(
    shaped: Running, choice: Any, how: dict[str, Any]
) -> None:
    fields = {"tools": [PYTHON], "tool_choice": choice, "parallel_tool_calls": False, **how}
    whole = (await chat(shaped, BOOK, **fields, max_tokens=400))["choices"][0]
    events = await chunks(shaped, BOOK, **fields, max_tokens=400)
    assert not whole["message"]["content"]
    assert not any(event["choices"][0]["delta"].get("content") for event in events)
    assert whole["finish_reason"] == "tool_calls"
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    for calls in (whole["message"]["tool_calls"], added_calls(events)):
        (call,) = calls
        assert call["type"] == "function"
        assert call["id"]
        assert call["function"]["name"] == "python"
        arguments = json.loads(call["function"]["arguments"])
        assert arguments.keys() == {"code"}
        assert isinstance(arguments["code"], str)


async def test_a_named_function_is_called_and_its_result_goes_back(shaped: Running) -> None:
    python = PYTHON["function"]
    fields = {"functions": [python], "function_call": {"name": "python"}, "temperature": 0.0}
    whole = (await chat(shaped, BOOK, **fields, max_tokens=400))["choices"][0]
    events = [one["choices"][0] for one in await chunks(shaped, BOOK, **fields, max_tokens=400)]
    assert whole["finish_reason"] == events[-1]["finish_reason"] == "function_call"
    message = whole["message"]
    assert "tool_calls" not in message
    assert message["function_call"]["name"] == "python"
    assert json.loads(message["function_call"]["arguments"]).keys() == {"code"}
    added = [event["delta"].get("function_call", {}) for event in events]
    assert message["function_call"] == {
        name: "".join(one.get(name, "") for one in added) for name in ("name", "arguments")
    }

    result = {"role": "function", "name": "python", "content": "0.55"}
    asked = [*BOOK, message, result]
    again = (await chat(shaped, asked, functions=[python], function_call="none"))["choices"][0]
    assert "function_call" not in again["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None, "tool_choice": None},
        {"tools": [SUCCESS]},
        {"tools": [PYTHON], "tool_choice": "none"},
    ],
)
async def test_where_none_is_called_there_are_no_calls(
    shaped: Running, fields: dict[str, Any]
) -> None:
    fields |= {"temperature": 0.0, "max_tokens": 30}
    assert "tool_calls" not in (await chat(shaped, **fields))["choices"][0]["message"]
    for chunk in await chunks(shaped, **fields):
        assert "tool_calls" not in chunk["choices"][0]["delta"]


async def test_a_result_goes_back(shaped: Running) -> None:
    call = {
        "id": "call_6789",
        "type": "function",
        "function": {"name": "calculate", "arguments": '{"expression":"sin(30 * pi / 180)"}'},
    }
    result = {"role": "tool", "name": "calculate", "content": "0.55", "tool_call_id": "call_6789"}
    asked = [*BOOK, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
    message = (await chat(shaped, asked, tools=[tool("calculate")]))["choices"][0]["message"]
    assert message["content"] is not None
    assert "tool_calls" not in message

    # As a call that max_tokens has cut.
    call["function"] = {"name": "calculate", "arguments": "{"}
    again = await shaped.client.post(PATH, json={"model": "demo", "messages": asked})
    assert again.status_code == 200


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"const": "foooooo"}},
                }
            },
            '"foooooo"',
        ),
        ({"structured_outputs": {"json": {"const": "42"}}}, '"42"'),
        ({"guided_grammar": 'root ::= "a"{5,5}'}, "aaaaa"),
    ],
)
async def test_an_answer_has_the_form_that_is_asked_for(
    shaped: Running, fields: dict[str, Any], text: str
) -> None:
    (choice,) = (await chat(shaped, **fields, max_tokens=10))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")


async def test_an_object_begins_as_one(shaped: Running) -> None:
    body = await chat(shaped, response_format={"type": "json_object"}, max_tokens=10)
    assert body["choices"][0]["message"]["content"].startswith("{")


async def test_logprobs_are_those_of_the_text(shaped: Running) -> None:
    # Bytes of one character, so that each token is a text.
    ascii_alone = {"allowed_token_ids": [*range(32, 127)]}
    fields = {"temperature": 0.0, "logprobs": True, "top_logprobs": 10, **ascii_alone}
    whole = (await chat(shaped, **fields))["choices"][0]
    events = [chunk["choices"][0] for chunk in await chunks(shaped, **fields)]
    parts = [part for event in events for part in (event["logprobs"] or {"content": ()})["content"]]
    for tokens in (whole["logprobs"]["content"], parts):
        assert "".join(token["token"] for token in tokens) == whole["message"]["content"]
        for token in tokens:
            assert token["logprob"] <= 0.0
            assert bytes(token["bytes"]).decode() == token["token"]
            assert len(token["top_logprobs"]) == 10


async def test_a_bias_leaves_out_what_was_tokenized(shaped: Running) -> None:
    tokens = (await told(shaped.client, "/tokenize", content="etaoin shrdlu"))["tokens"]
    bias = {str(token): -100 for token in tokens}
    body = await chat(shaped, temperature=0.0, logit_bias=bias, max_tokens=64)
    text = body["choices"][0]["message"]["content"]
    assert text
    assert not set(text) & set("etaoin shrdlu")


async def test_a_context_that_is_too_long(shaped: Running) -> None:
    for streams in (False, True):
        body = {"model": "demo", "messages": BOOK * 100, "stream": streams}
        response = await shaped.client.post(PATH, json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["type"], error["code"]) == (
            "invalid_request_error",
            "context_length_exceeded",
        )
        assert f"maximum context length is {MAX_MODEL_LEN} tokens" in error["message"]
