"""The templates of Open Responses' compliance suite: what it asks, and what it holds answers to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import openresponses_types.types as open_responses
import pytest
from pydantic import BaseModel

from tests.support.deployments import openai_types
from tests.support.deployments.answers import error_of
from tests.support.deployments.gateway_harness import Running, fake_replica, gateway
from tests.support.deployments.scripted_backend import Scripted

PATH = "/v1/responses"
KEY = "a-key"
TEXT = "Hello there, friend."
CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"location": "San Francisco, CA"}}\n'
    "</tool_call>"
)
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {
                "type": "string",
                "description": "The city and state, e.g. San Francisco, CA",
            }
        },
        "required": ["location"],
    },
}

EVENTS: dict[str, type[BaseModel]] = {
    next(iter(kind.model_fields["type"].annotation)).value: kind
    for name, kind in vars(open_responses).items()
    if name.startswith("Response") and name.endswith("StreamingEvent")
}
"""By their types."""

Events = list[dict[str, Any]]
Check = Callable[[dict[str, Any], Events], None]


def message(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def has_output(response: dict[str, Any], events: Events) -> None:
    assert response["output"]


def is_completed(response: dict[str, Any], events: Events) -> None:
    assert response["status"] == "completed"


def calls_a_function(response: dict[str, Any], events: Events) -> None:
    assert "function_call" in [item["type"] for item in response["output"]]


def has_events(response: dict[str, Any], events: Events) -> None:
    assert events


def streams_a_call(response: dict[str, Any], events: Events) -> None:
    of_items = [(event["type"], event["item"]["type"]) for event in events if "item" in event]
    assert ("response.output_item.added", "function_call") in of_items
    assert ("response.output_item.done", "function_call") in of_items
    assert {
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
    } <= {event["type"] for event in events}


@dataclass(frozen=True)
class Template:
    name: str
    asked: list[dict[str, Any]]
    checks: tuple[Check, ...]
    streams: bool = False
    fields: dict[str, Any] = field(default_factory=dict)
    answer: str = TEXT
    """What the model says."""


WEATHER_HERE = [message("user", "What's the weather like in San Francisco?")]
TEMPLATES = [
    Template(
        "basic-response",
        [message("user", "Say hello in exactly 3 words.")],
        (has_output, is_completed),
    ),
    Template(
        "streaming-response",
        [message("user", "Count from 1 to 5.")],
        (has_events, is_completed),
        streams=True,
    ),
    Template(
        "system-prompt",
        [
            message("system", "You are a pirate. Always respond in pirate speak."),
            message("user", "Say hello."),
        ],
        (has_output, is_completed),
    ),
    Template(
        "tool-calling",
        WEATHER_HERE,
        (has_output, calls_a_function),
        fields={"tools": [WEATHER]},
        answer=CALL,
    ),
    Template(
        "tool-calling-streaming",
        WEATHER_HERE,
        (has_events, streams_a_call),
        streams=True,
        fields={"tools": [WEATHER]},
        answer=CALL,
    ),
    Template(
        "multi-turn",
        [
            message("user", "My name is Alice."),
            message("assistant", "Hello Alice! Nice to meet you. How can I help you today?"),
            message("user", "What is my name?"),
        ],
        (has_output, is_completed),
    ),
]


async def ask(running: Running, template: Template) -> Any:
    body = {"model": "demo", "input": template.asked, "stream": template.streams, **template.fields}
    headers = {"Authorization": f"Bearer {KEY}"}
    return await running.client.post(PATH, json=body, headers=headers)


def events_of(text: str) -> Events:
    """Each an event that the suite knows, with its type for a name; then the end."""
    *told, last, nothing = (
        part for part in text.split("\n\n") if not part.startswith(":") or part == ""
    )
    assert (last, nothing) == ("data: [DONE]", "")
    events = []
    for part in told:
        name, _, data = part.removeprefix("event: ").partition("\ndata: ")
        event = json.loads(data)
        assert event["type"] == name
        EVENTS[name].model_validate(event)
        openai_types.response_event(event)
        events.append(event)
    return events


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda one: one.name)
async def test_an_answer_complies(template: Template) -> None:
    backend = Scripted(template.answer)
    async with fake_replica(backend) as one, gateway([one], keys=[KEY]) as running:
        answer = await ask(running, template)
    assert answer.status_code == 200, answer.text
    events: Events = []
    if template.streams:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer.text)
        (response,) = (
            event["response"] for event in events if event["type"] == "response.completed"
        )
    else:
        response = answer.json()
    open_responses.ResponseResource.model_validate(response)
    openai_types.response(response)
    for check in template.checks:
        check(response, events)


async def test_an_image_is_refused_by_its_place() -> None:
    """The suite has a model with eyes in mind: those here read text."""
    template = Template(
        "image-input",
        [
            message(
                "user",
                [
                    {"type": "input_text", "text": "What do you see in this image?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
                ],
            )
        ],
        (),
    )
    backend = Scripted(TEXT)
    async with fake_replica(backend) as one, gateway([one], keys=[KEY]) as running:
        answer = await ask(running, template)
    assert (answer.status_code, error_of(answer)["type"]) == (400, "invalid_request_error")
    assert str(error_of(answer)["param"]).startswith("input[0].content[1]")
    assert backend.asked == []
