"""The Responses API over HTTP: whole, streamed, and cut anywhere."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import openresponses_types.types as open_responses
import pytest
from openai import AsyncOpenAI
from pydantic import TypeAdapter
from starlette.applications import Starlette

from deployments.wire.checkpoint import CheckpointReader
from deployments.wire.envelope import ENVELOPE_HEADER, Envelope
from tests.support.deployments import openai_types
from tests.support.deployments.added_up import added_up
from tests.support.deployments.replica_server import MODEL, SECRET, in_memory, served
from tests.support.deployments.scripted_backend import ANSWER, Scripted, app_of
from tests.support.fuzzing import EVERY_EXAMPLE

PATH = "/v1/responses"
CODEX = Path(__file__).parent / "recorded" / "codex.json"
"""Its first request, with its texts cut."""
TOOLS = [
    {
        "type": "function",
        "name": "weather",
        "description": "Of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    },
    {"type": "function", "name": "time"},
]
ASKED: dict[str, Any] = {"model": MODEL, "input": "How is it in Köln?", "tools": TOOLS}
CUSTOM = (
    "Now.\n<tool_call>\n"
    '{"name": "fs__patch", "arguments": {"input": "*** \\"a\\"\\n\\u00fc\\ud83c\\udf4e\\\\"}}'
    "\n</tool_call>"
)
CUSTOM_TOOLS = [
    {"type": "web_search", "search_context_size": "low"},
    {
        "type": "namespace",
        "name": "fs",
        "description": "Files.",
        "tools": [
            {"type": "custom", "name": "patch", "description": "A patch."},
            {"type": "function", "name": "read", "strict": True},
        ],
    },
]


async def whole(app: Starlette, **fields: Any) -> dict[str, Any]:
    async with in_memory(app) as client:
        response = await client.post(PATH, json=ASKED | fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    openai_types.response(body)
    return body


async def events_of(
    app: Starlette, log: bytes = b"", num_events: int = 0, **fields: Any
) -> tuple[list[dict[str, Any]], CheckpointReader]:
    """What a gateway passes on, event by event."""
    body = json.dumps(ASKED | fields | {"stream": True}).encode()
    envelope = replace(Envelope.seal(), answer_id="a" * 32, created=7)
    envelope = envelope.for_attempt(uuid.uuid4().hex, log, num_events)
    reader = CheckpointReader()
    async with in_memory(app) as client:
        response = await client.post(
            PATH, content=body + log, headers={ENVELOPE_HEADER: envelope.header()}
        )
    assert response.status_code == 200, response.text
    events = []
    for event in reader.feed(response.content).decode().split("\n\n"):
        if event.startswith("event: "):
            name, _, data = event.removeprefix("event: ").partition("\ndata: ")
            told = json.loads(data)
            assert told["type"] == name
            openai_types.response_event(told)
            events.append(told)
    return events, reader


def timeless(value: Any) -> Any:
    """Without what differs between two answers."""
    if isinstance(value, dict):
        own = ("id", "item_id", "call_id", "created_at", "completed_at")
        return {name: timeless(one) for name, one in value.items() if name not in own}
    return [timeless(one) for one in value] if isinstance(value, list) else value


LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
CASES = [
    pytest.param(ANSWER, {}, id="thought, text and calls"),
    pytest.param("Just text.", {"tools": []}, id="text"),
    pytest.param(ANSWER, LOGPROBS, id="logprobs"),
    pytest.param(CUSTOM, {"tools": CUSTOM_TOOLS}, id="custom tool in a namespace"),
]


@pytest.mark.parametrize(("answer", "fields"), CASES)
async def test_a_stream_adds_up_to_the_whole(answer: str, fields: dict[str, Any]) -> None:
    app = await app_of(Scripted(answer))
    body = await whole(app, **fields)
    events, _ = await events_of(app, **fields)
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    first, second, *told, last = events
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
    assert first["response"] == second["response"]
    assert first["response"]["status"] == "in_progress"
    assert last["type"] == "response.completed"
    assert last["response"]["id"] == first["response"]["id"] == f"resp_{'a' * 32}"
    assert timeless(last["response"]) == timeless(body)
    assert added_up(told) == last["response"]["output"]


@pytest.mark.parametrize(("answer", "fields"), [CASES[0], CASES[3]])
async def test_whoever_goes_on_gives_the_rest_of_the_events(
    answer: str, fields: dict[str, Any]
) -> None:
    backend = Scripted(answer)
    app = await app_of(backend)
    uncut, _ = await events_of(app, **fields)
    for cut in range(1, len(answer), 1 if EVERY_EXAMPLE else 3):
        backend.stops_after = cut
        had, reader = await events_of(app, **fields)
        backend.stops_after = None
        rest, _ = await events_of(app, bytes(reader.log), reader.num_events, **fields)
        assert reader.num_events == len(had)
        assert timed(had + rest) == timed(uncut), cut


def timed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As if all had ended at the same time."""
    *before, last = events
    return [*before, last | {"response": last["response"] | {"completed_at": 0}}]


async def test_logprobs_are_those_of_the_text() -> None:
    app = await app_of(Scripted("Just text."))
    message = (await whole(app, tools=[], **LOGPROBS))["output"][0]
    tokens = message["content"][0]["logprobs"]
    assert "".join(token["token"] for token in tokens) == "Just text."
    assert tokens[0] == {
        "token": "J",
        "logprob": -0.5,
        "bytes": [74],
        "top_logprobs": [{"token": "e", "logprob": -0.1, "bytes": [101]}],
    }


async def test_a_stream_that_went_on_ends_with_the_logprobs_of_what_was_drawn_there() -> None:
    backend = Scripted("Just text.")
    app = await app_of(backend)
    backend.stops_after = 4
    had, reader = await events_of(app, tools=[], **LOGPROBS)
    backend.stops_after = None
    log = bytes(reader.log)
    rest, _ = await events_of(app, log, reader.num_events, tools=[], **LOGPROBS)
    told = [token["token"] for one in had + rest if "delta" in one for token in one["logprobs"]]
    assert "".join(told) == "Just text."
    content = rest[-1]["response"]["output"][0]["content"][0]
    assert content["text"] == "Just text."
    assert [token["token"] for token in content["logprobs"]] == [*" text."]


async def test_the_openai_client_reads_it() -> None:
    async with served(await app_of(Scripted(ANSWER))) as url:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key=SECRET, max_retries=0)
        one = await client.responses.create(**ASKED)
        async with client.responses.stream(**ASKED) as stream:
            events = [event.type async for event in stream]
            other = await stream.get_final_response()
        await client.close()
    assert events[0] == "response.created"
    assert events[-1] == "response.completed"
    for response in (one, other):
        assert response.status == "completed"
        assert response.output_text == "Let me see."
        thought, message, weather, clock = response.output
        assert thought.content[0].text == "Where?"
        assert message.status == "completed"
        assert (weather.name, json.loads(weather.arguments)) == ("weather", {"city": "Köln <b>"})
        assert (clock.name, clock.arguments) == ("time", "{}")
        assert len({item.id for item in response.output}) == 4
        assert response.usage.input_tokens == 5
        assert response.usage.output_tokens == len(ANSWER)
        assert response.usage.total_tokens == 5 + len(ANSWER)


async def test_open_responses_schema_holds() -> None:
    app = await app_of(Scripted(ANSWER))
    fields: dict[str, Any] = {"instructions": "Be brief.", "metadata": {"a": "b"}}
    body = await whole(app, **fields)
    open_responses.ResponseResource.model_validate(body)
    assert body.keys() >= open_responses.ResponseResource.model_fields.keys()
    kinds = [
        one
        for name, one in vars(open_responses).items()
        if name.startswith("Response") and name.endswith("StreamingEvent")
    ]
    known = {next(iter(one.model_fields["type"].annotation)).value: one for one in kinds}
    events, _ = await events_of(app, **fields)
    checked = [event for event in events if event["type"] in known]
    # The others tell of thoughts, which that document calls by another name.
    assert {event["type"] for event in events if event not in checked} == {
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
    }
    for event in checked:
        TypeAdapter(known[event["type"]]).validate_python(event)


async def test_a_thought_that_the_prompt_has_begun_is_none_of_the_text() -> None:
    app = await app_of(Scripted("Hm.\n</think>\n\nYes.", prompt_end="assistant\n<think>\n"))
    output = (await whole(app))["output"]
    assert [one["type"] for one in output] == ["reasoning", "message"]
    assert [one["content"][0]["text"] for one in output] == ["Hm.", "Yes."]
    events, _ = await events_of(app)
    assert timeless(events[-1]["response"]["output"]) == timeless(output)
    assert timeless(added_up(events[2:-1])) == timeless(output)


async def test_a_custom_tool_is_called_with_text() -> None:
    backend = Scripted(CUSTOM)
    async with in_memory(await app_of(backend)) as client:
        response = await client.post(PATH, json=ASKED | {"tools": CUSTOM_TOOLS})
    assert response.headers["x-pomona-dropped"] == "web_search"
    _, call = response.json()["output"]
    assert (call["type"], call["name"], call["namespace"]) == ("custom_tool_call", "patch", "fs")
    assert call["input"] == '*** "a"\nü🍎\\'
    assert response.json()["tools"] == [
        CUSTOM_TOOLS[1]
        | {
            "tools": [
                CUSTOM_TOOLS[1]["tools"][0] | {"format": {"type": "text"}},
                CUSTOM_TOOLS[1]["tools"][1] | {"description": None, "parameters": {}},
            ]
        }
    ]
    prompt = backend.asked[0].prompt
    patch, read = (tool["function"] for tool in prompt.tools)
    assert (patch["name"], patch["description"]) == ("fs__patch", "Files.\n\nA patch.")
    assert patch["parameters"]["properties"] == {"input": {"type": "string"}}
    assert read["name"] == "fs__read"


async def test_what_was_cut_short_is_incomplete() -> None:
    backend = Scripted(ANSWER[:-30])
    backend.finish_reason = "length"
    app = await app_of(backend)
    body = await whole(app, max_output_tokens=9)
    assert backend.asked[0].sampling.max_tokens == 9
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in body["output"]][-2:] == ["completed", "incomplete"]
    events, _ = await events_of(app)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-2]["item"]["status"] == "incomplete"


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
LEFT_OUT = "[image left out: this model reads text]"


async def test_items_become_messages_of_the_template() -> None:
    backend = Scripted("text")
    call = {"type": "function_call", "call_id": "c", "name": "read", "namespace": "fs"}
    items = [
        {"role": "developer", "content": "Rules."},
        {"role": "user", "content": [{"type": "input_text", "text": "Go."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
        | {"content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
        | {"content": [{"type": "output_text", "text": "See:", "annotations": []}]},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search"}},
        call | {"id": "fc_1", "arguments": '{"a": 1, "b": "cu', "status": "incomplete"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x\n"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "d"}
        | {"output": [{"type": "input_text", "text": "2"}, IMAGE]},
        {"role": "assistant", "content": "Done."},
        {"role": "developer", "content": "More rules."},
        {"role": "user", "content": "Again."},
    ]
    await whole(await app_of(backend), input=items, instructions="Be brief.")
    calls = [
        {
            "id": "c",
            "type": "function",
            "function": {"name": "fs__read", "arguments": {"a": 1, "b": "cu"}},
        },
        {
            "id": "d",
            "type": "function",
            "function": {"name": "patch", "arguments": {"input": "x\n"}},
        },
    ]
    assert backend.asked[0].prompt.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": "See:",
            "reasoning_content": "Hm.",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "tool", "tool_call_id": "d", "content": f"2\n{LEFT_OUT}"},
        {"role": "assistant", "content": "Done."},
        {"role": "system", "content": "More rules."},
        {"role": "user", "content": "Again."},
    )


@pytest.mark.parametrize(
    ("effort", "arguments"),
    [
        (None, {}),
        ("none", {"enable_thinking": False}),
        ("low", {"enable_thinking": True, "reasoning_effort": "low"}),
        ("xhigh", {"enable_thinking": True, "reasoning_effort": "high"}),
    ],
)
async def test_how_hard_it_thinks_is_told_to_the_template(
    effort: str | None, arguments: dict[str, Any]
) -> None:
    variables: dict[str, frozenset[str]] = {
        "enable_thinking": frozenset(),
        "reasoning_effort": frozenset({"low", "medium", "high"}),
    }
    backend = Scripted("text", template_variables=variables)
    body = await whole(await app_of(backend), reasoning={"effort": effort})
    assert body["reasoning"]["effort"] == effort
    assert backend.asked[0].prompt.template_arguments == arguments


async def test_an_answer_can_be_sent_back_as_it_came() -> None:
    backend = Scripted(ANSWER)
    app = await app_of(backend)
    output = (await whole(app))["output"]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "x"}
        for item in output[-2:]
    ]
    await whole(app, input=[{"role": "user", "content": "Go."}, *output, *results])
    _, answer, *told = backend.asked[1].prompt.messages
    assert (answer["reasoning_content"], answer["content"]) == ("Where?", "Let me see.")
    assert [call["function"]["name"] for call in answer["tool_calls"]] == ["weather", "time"]
    assert [message["tool_call_id"] for message in told] == [
        call["id"] for call in answer["tool_calls"]
    ]


async def test_the_input_of_a_custom_tool_is_held_to_its_grammar() -> None:
    backend = Scripted("text")
    wanted = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+ (apples|pears)"}
    tool = {"type": "custom", "name": "order", "format": wanted}
    body = await whole(await app_of(backend), tools=[tool], tool_choice="required")
    assert body["tools"] == [tool]
    grammar = backend.asked[0].sampling.grammar
    assert grammar is not None
    assert '"pattern": "^(?:[0-9]+ (apples|pears))$"' in grammar.text


async def test_a_thought_comes_back_from_clients_that_can_not_read_it() -> None:
    backend = Scripted(ANSWER)
    app = await app_of(backend)
    thought = (await whole(app, include=["reasoning.encrypted_content"]))["output"][0]
    events, _ = await events_of(app, include=["reasoning.encrypted_content"])
    assert timeless(events[-1]["response"]["output"][0]) == timeless(thought)
    said = {"role": "assistant", "content": "Yes."}
    foreign = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAA=="}
    for item in (thought | {"content": None}, foreign):
        await whole(app, input=[{"role": "user", "content": "Go."}, item, said])
    carried, passed_over = (one.prompt.messages[1] for one in backend.asked[2:])
    assert carried["reasoning_content"] == "Where?"
    assert "reasoning_content" not in passed_over


NAMED = {"type": "function", "name": "time"}


@pytest.mark.parametrize(
    ("choice", "may_be_text"),
    [
        ("auto", True),
        ("required", False),
        (NAMED, False),
        ({"type": "allowed_tools", "mode": "auto", "tools": [NAMED]}, True),
        ("none", None),
    ],
)
async def test_calls_are_held_to_the_choice(choice: Any, may_be_text: bool | None) -> None:
    backend = Scripted("text")
    body = await whole(await app_of(backend), tool_choice=choice)
    assert body["tool_choice"] == choice
    grammar = backend.asked[0].sampling.grammar
    assert (grammar is None) == (may_be_text is None)
    if grammar is not None:
        assert ("FREE?" in grammar.text) == may_be_text
        assert ('\\"weather\\"' in grammar.text) == isinstance(choice, str)


async def test_text_is_held_to_a_schema() -> None:
    backend = Scripted("{}")
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    wanted = {"type": "json_schema", "name": "nothing", "schema": schema, "strict": True}
    body = await whole(await app_of(backend), tools=[], text={"format": wanted})
    assert body["text"]["format"] == wanted | {"description": None}
    grammar = backend.asked[0].sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.text) == schema


async def test_what_the_engine_refuses_is_told_in_the_clients_terms() -> None:
    app = await app_of(Scripted("text"), chat_template="{{ messages }}")
    async with in_memory(app) as client:
        response = await client.post(PATH, json=ASKED | {"reasoning": {"effort": "none"}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"


async def test_codex_is_answered() -> None:
    """After it looked at an image."""
    backend = Scripted(ANSWER)
    asked = json.loads(CODEX.read_text())
    async with in_memory(await app_of(backend)) as client:
        response = await client.post(PATH, json=asked | {"model": MODEL, "stream": False})
    assert response.status_code == 200, response.text
    assert response.headers["x-pomona-dropped"] == "web_search, image"
    openai_types.response(response.json())
    prompt = backend.asked[0].prompt
    told = [message["role"] for message in prompt.messages]
    assert told == ["system", "system", "user", "user", *["assistant", "tool"] * 3]
    names = [tool["function"]["name"] for tool in prompt.tools]
    assert {"exec_command", "view_image", "multi_agent_v1__spawn_agent"} < set(names)
