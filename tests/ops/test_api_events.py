"""Each row of the reference of streams: what is sent, no more, and all that the packages know."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import anthropic.types
import openai.types.responses
import pytest
from anthropic.types import RawContentBlockDelta, RawMessageStreamEvent
from openai.types.chat import chat_completion_chunk as of_chunks
from pydantic import BaseModel

from ops import api_events
from ops.api_events import STREAMS, Fates, Sent
from tests.support.deployments.replica_server import MODEL, in_memory
from tests.support.deployments.scripted_backend import ANSWER, Scripted, app_of

CHAT, RESPONSES, MESSAGES = STREAMS
TOOL_CALL = ANSWER[ANSWER.index("<tool_call>") :]
CUSTOM = '<tool_call>\n{"name": "patch", "arguments": {"input": "a\\n"}}\n</tool_call>'
TEXT: dict[str, Any] = {
    CHAT: {"messages": [{"role": "user", "content": "How is it in Köln?"}]},
    RESPONSES: {"input": "How is it in Köln?"},
    MESSAGES: {"messages": [{"role": "user", "content": "How is it?"}], "max_tokens": 500},
}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: dict[str, Any] = {
    CHAT: [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
        for name in ("weather", "time")
    ],
    RESPONSES: [
        {"type": "function", "name": "weather", "parameters": PARAMETERS},
        {"type": "function", "name": "time"},
        {"type": "custom", "name": "patch"},
    ],
    MESSAGES: [{"name": name, "input_schema": PARAMETERS} for name in ("weather", "time")],
}
MORE: dict[str, Any] = {
    CHAT: {
        "stream_options": {"include_usage": True},
        "service_tier": "auto",
        "return_token_ids": True,
        "logprobs": True,
    },
    RESPONSES: {},
    MESSAGES: {},
}


def backends(path: str) -> Iterator[Scripted]:
    """Whose streams have together all that a stream may have."""
    yield Scripted(ANSWER)
    yield Scripted(CUSTOM if path == RESPONSES else TOOL_CALL)
    for finish_reason, stop_string in (("length", None), ("stop", "."), ("stop", None)):
        backend = Scripted("Just text.")
        backend.finish_reason, backend.stop_string = finish_reason, stop_string  # type: ignore[assignment]
        yield backend
    broken = Scripted("Just text.")
    broken.stops_after = 4
    yield broken


async def streams(path: str) -> list[dict[str, Any]]:
    events = []
    asked = {"model": MODEL, "stream": True, **TEXT[path], "tools": TOOLS[path], **MORE[path]}
    # As long as the answer that is cut, and longer: one ends with the context.
    bodies = [asked, asked | {"max_tokens": 10}] if path == MESSAGES else [asked]
    if path == CHAT:
        functions = [tool["function"] for tool in TOOLS[path]]
        bodies.append(asked | {"tools": None, "functions": functions})
    for body in bodies:
        for backend in backends(path):
            async with in_memory(await app_of(backend)) as client:
                response = await client.post(path, json=body)
            assert response.status_code == 200, response.text
            lines = response.text.splitlines()
            data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
            events += map(json.loads, data)
    return events


def names_in(path: str, events: list[dict[str, Any]]) -> dict[str, set[str]]:
    """By what there are several kinds of."""
    found: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if path == CHAT and "error" not in event:
            found["member of a chunk"] |= event.keys()
            for choice in event["choices"]:
                found["member of a choice"] |= choice.keys()
                found["member of a delta"] |= choice["delta"].keys()
                found["finish_reason"] |= {choice["finish_reason"]} - {None}
        elif path != CHAT:
            found["event"].add(event["type"])
        if path == MESSAGES:
            delta, block = event.get("delta", {}), event.get("content_block", {})
            found["type of a delta"] |= {delta["type"]} if "type" in delta else set()
            found["type of a block"] |= {block["type"]} if block else set()
            found["stop_reason"] |= {delta["stop_reason"]} if "stop_reason" in delta else set()
    return found


@pytest.mark.parametrize("path", STREAMS)
async def test_what_is_sent_is_what_is_told(path: str) -> None:
    found = names_in(path, await streams(path))
    told = {
        kind: {name for name, fate in fates.items() if isinstance(fate, Sent)}
        for kind, fates in STREAMS[path].items()
    }
    assert found == told


def kinds_in(union: Any) -> set[str]:
    """The type of each member."""
    if get_origin(union) is Annotated:
        union = get_args(union)[0]
    return {
        name for one in get_args(union) for name in literals(one.model_fields["type"].annotation)
    }


def literals(annotation: Any) -> set[str]:
    """In it, or in what it is a union of."""
    inner = [one for one in get_args(annotation) if one is not type(None)]
    return {text for one in inner for text in ([one] if isinstance(one, str) else literals(one))}


def members(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


PACKAGES: list[tuple[Fates, set[str], set[str]]] = [
    (
        api_events.RESPONSES,
        kinds_in(openai.types.responses.ResponseStreamEvent),
        set(),
    ),
    (api_events.MESSAGES, kinds_in(RawMessageStreamEvent), {"ping", "error"}),
    (api_events.MESSAGES_DELTAS, kinds_in(RawContentBlockDelta), set()),
    (api_events.MESSAGES_BLOCKS, kinds_in(anthropic.types.ContentBlock), set()),
    (api_events.MESSAGES_STOP_REASONS, set(get_args(anthropic.types.StopReason)), set()),
    (api_events.CHAT_CHUNK, members(of_chunks.ChatCompletionChunk), {"prompt_token_ids"}),
    (api_events.CHAT_CHOICE, members(of_chunks.Choice), {"token_ids"}),
    (api_events.CHAT_DELTA, members(of_chunks.ChoiceDelta), {"reasoning", "reasoning_content"}),
    (
        api_events.CHAT_FINISH_REASONS,
        literals(of_chunks.Choice.model_fields["finish_reason"].annotation),
        set(),
    ),
]


@pytest.mark.parametrize(("fates", "known", "more"), PACKAGES)
def test_each_that_the_packages_know_has_a_fate(
    fates: Fates, known: set[str], more: set[str]
) -> None:
    assert len(known) > 2, "nothing was compared"
    assert not known & more
    assert fates.keys() == known | more


def test_every_table_is_compared() -> None:
    told = [fates for kinds in STREAMS.values() for fates in kinds.values()]
    assert {id(fates) for fates, _, _ in PACKAGES} == {id(fates) for fates in told}
