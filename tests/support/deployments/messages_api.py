"""What tests ask of Anthropic's Messages API, and how answers are held to the package's types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.beta import BetaRawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

TOOLS = [
    {
        "name": "weather",
        "description": "Of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    {"name": "time", "input_schema": {"type": "object"}},
]
_MESSAGE: TypeAdapter[Any] = TypeAdapter(Message)
_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_ESTIMATE: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)


def body(**fields: Any) -> dict[str, Any]:
    """``None``: left out."""
    asked = {
        "model": "demo",
        "max_tokens": 500,
        "messages": [{"role": "user", "content": "How is it in Köln?"}],
    }
    return {name: value for name, value in (asked | fields).items() if value is not None}


def checked_message(data: dict[str, Any]) -> dict[str, Any]:
    """``data``, which the package's type describes in full."""
    _check_known(_MESSAGE.validate_python(data))
    return data


def checked_events(stream: str) -> list[dict[str, Any]]:
    """The data of each event; raises ``AssertionError`` unless each is one of the package's. Pings
    are none: its reader skips them."""
    events = []
    for one in stream.removesuffix("\n\n").split("\n\n"):
        if one.startswith(":"):
            continue
        name, _, data = one.removeprefix("event: ").partition("\ndata: ")
        event = json.loads(data)
        assert event["type"] == name
        if name not in ("ping", "error"):
            known = _ESTIMATE if "estimated_tokens" in event.get("delta", {}) else _EVENT
            _check_known(known.validate_python(event))
        events.append(event)
    return events


def check_order(events: list[dict[str, Any]]) -> None:
    """Of a whole stream."""
    names = [event["type"] for event in events]
    assert names[:2] == ["message_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    is_open, index = False, -1
    for event in events[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                index, is_open = index + 1, True
            case "content_block_delta":
                assert is_open
            case "content_block_stop":
                assert is_open
                is_open = False
            case name:
                raise AssertionError(name)
        assert event["index"] == index
    assert not is_open


def _check_known(value: Any) -> None:
    for model in _models_in(value):
        assert not model.model_extra, (type(model).__name__, model.model_extra)


def _models_in(value: Any) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        value = list(vars(value).values())
    if isinstance(value, list):
        for one in value:
            yield from _models_in(one)
