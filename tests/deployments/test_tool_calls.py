"""Tool calls and thoughts over HTTP, by a backend that says what it is told to say."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest
from openai import AsyncOpenAI

from deployments.wire.checkpoint import CheckpointReader
from deployments.wire.envelope import ENVELOPE_HEADER, Envelope
from tests.support.deployments.replica_server import MODEL, SECRET, in_memory, served
from tests.support.deployments.scripted_backend import ANSWER, Scripted, app_of

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "time"}},
]
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "How is it in Köln?"}],
    "tools": TOOLS,
}


async def test_the_openai_client_reads_calls_streamed_and_whole() -> None:
    backend = Scripted(ANSWER)
    async with served(await app_of(backend)) as url:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key=SECRET, max_retries=0)
        whole = await client.chat.completions.create(**ASKED, n=2)
        async with client.chat.completions.stream(**ASKED, n=2) as stream:
            streamed = await stream.get_final_completion()
        await client.close()
    assert len(whole.choices) == len(streamed.choices) == 2
    ids = set()
    for choice, same in zip(whole.choices, streamed.choices, strict=True):
        assert choice.finish_reason == same.finish_reason == "tool_calls"
        assert choice.message.content == same.message.content == "Let me see."
        assert choice.message.reasoning_content == "Where?"
        assert choice.message.reasoning == "Where?"
        for calls in (choice.message.tool_calls, same.message.tool_calls):
            assert [call.function.name for call in calls] == ["weather", "time"]
            assert json.loads(calls[0].function.arguments) == {"city": "Köln <b>"}
            assert calls[1].function.arguments == "{}"
            ids |= {call.id for call in calls}
    assert len(ids) == 8
    prompt = backend.asked[0].prompt
    assert prompt.tools[1] == {
        "type": "function",
        "function": {"name": "time", "parameters": {"type": "object", "properties": {}}},
    }
    assert prompt.tools[0]["function"] == TOOLS[0]["function"]


async def events_of(
    app: Any, log: bytes = b"", **fields: Any
) -> tuple[list[Any], CheckpointReader]:
    body = json.dumps(ASKED | fields | {"stream": True}).encode()
    envelope = replace(Envelope.seal(), answer_id="a" * 32).for_attempt(uuid.uuid4().hex, log)
    reader = CheckpointReader()
    async with in_memory(app) as client:
        response = await client.post(
            "/v1/chat/completions",
            content=body + log,
            headers={ENVELOPE_HEADER: envelope.header()},
        )
    told = reader.feed(response.content).decode()
    lines = [line.removeprefix("data: ") for line in told.split("\n\n")]
    return [json.loads(line)["choices"][0] for line in lines if line.startswith("{")], reader


def joined(choices: list[Any]) -> dict[str, Any]:
    """All that a client has been told; calls by their index."""
    told: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "end": None}
    for choice in choices:
        delta = choice["delta"]
        told["content"] += delta.get("content") or ""
        told["reasoning"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            one = told["calls"].setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
            one["id"] += call.get("id", "")
            one["name"] += call["function"].get("name", "")
            one["arguments"] += call["function"]["arguments"]
        told["end"] = choice["finish_reason"] or told["end"]
    return told


async def test_a_call_goes_on_elsewhere_wherever_it_was_cut() -> None:
    """The client gets the events of the first replica up to the cut, then those of the second."""
    first = Scripted(ANSWER)
    app = await app_of(first)
    whole = joined((await events_of(app))[0])
    assert whole["reasoning"] == "Where?"
    assert whole["end"] == "tool_calls"
    for cut in range(1, len(ANSWER), 3):
        first.stops_after = cut
        had, reader = await events_of(app)
        first.stops_after = None
        assert reader.num_logged <= cut
        rest, _ = await events_of(app, reader.log)
        assert joined(had + rest) == whole


async def test_the_template_may_have_begun_the_thought() -> None:
    app = await app_of(Scripted("Hm.\n</think>\n\nYes.", prompt_end="assistant\n<think>\n"))
    told = joined((await events_of(app, tools=[]))[0])
    assert (told["reasoning"], told["content"], told["end"]) == ("Hm.", "Yes.", "stop")


async def test_thoughts_may_be_left_out() -> None:
    app = await app_of(Scripted(ANSWER))
    told = joined((await events_of(app, include_reasoning=False))[0])
    whole = joined((await events_of(app))[0])
    assert whole["reasoning"] == "Where?"
    assert told == whole | {"reasoning": ""}
    body = ASKED | {"reasoning": {"exclude": True}}
    async with in_memory(app) as client:
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    message = answer["choices"][0]["message"]
    assert message.keys() == {"role", "content", "refusal", "tool_calls"}
    assert message["content"] == "Let me see."


@pytest.mark.parametrize(
    ("choice", "is_free"),
    [("auto", True), ("required", False), ("none", None)],
)
async def test_calls_are_held_to_the_tools(choice: str, is_free: bool | None) -> None:
    backend = Scripted("text")
    await events_of(await app_of(backend), tool_choice=choice)
    (request,) = backend.asked
    assert bool(request.prompt.tools) == (is_free is not None)
    grammar = request.sampling.grammar
    if is_free is None:
        assert grammar is None
    else:
        assert grammar is not None
        assert grammar.param == "tools"
        assert ("FREE?" in grammar.text.splitlines()[0]) == is_free
        assert '\\"time\\"' in grammar.text


async def test_special_tokens_that_are_markers_are_shown() -> None:
    added = {"[TOOL_CALLS]": 9, "[ARGS]": 32, "<s>": 1, "[INST]": 3}
    backend = Scripted(
        "text",
        chat_template="[TOOL_CALLS] [ARGS]",
        added_tokens=added,
        special_tokens=frozenset(added),
    )
    await events_of(await app_of(backend))
    (request,) = backend.asked
    assert request.sampling.shown_tokens == ("[ARGS]", "[TOOL_CALLS]")
    assert request.sampling.grammar is not None
    assert "<[9]>" in request.sampling.grammar.text


async def test_a_model_without_a_form_of_calls_refuses_tools() -> None:
    app = await app_of(Scripted("text", chat_template="{{ messages }}"))
    async with in_memory(app) as client:
        response = await client.post("/v1/chat/completions", json=ASKED)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
    assert "no form of tool calls" in response.json()["error"]["message"]


async def test_calls_and_their_results_go_back_to_the_template() -> None:
    backend = Scripted("text")
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "time", "arguments": '{"zone": "CET"}'},
    }
    messages = [
        *ASKED["messages"],
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]
    await events_of(await app_of(backend), messages=messages)
    prompt = backend.asked[0].prompt
    assert prompt.messages[1:] == (
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [call | {"function": {"name": "time", "arguments": {"zone": "CET"}}}],
        },
        {"role": "tool", "content": "12:00", "tool_call_id": "call_1"},
    )
