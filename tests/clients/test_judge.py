"""What judges answers finds those that are not as asked."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.support.clients.held import Held, held
from tests.support.clients.wiretap import Exchange

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in "fg"]
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
REQUIRED = {"tools": TOOLS, "tool_choice": "required"}
NAMED = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}


def chat(
    asked: Any,
    content: str | None = None,
    calls: list[tuple[str, str]] | None = None,
    finish_reason: str = "stop",
    status: int = 200,
) -> Exchange:
    functions = [{"function": {"name": name, "arguments": text}} for name, text in calls or []]
    choice = {
        "message": {"content": content, "tool_calls": functions},
        "finish_reason": finish_reason,
    }
    answer = bytearray(json.dumps({"choices": [choice]}).encode())
    return Exchange("/v1/chat/completions", asked, status, answer, is_over=True)


def test_valid_answers_are_counted() -> None:
    exchanges = [
        chat({"response_format": FORM}, '{"n": 1}'),
        chat(REQUIRED, None, [("f", '{"n": 1}'), ("g", '{"n": 2}')]),
        chat(NAMED, None, [("g", '{"n": 1}')]),
        chat({}, "Any text."),
        Exchange("/v1/models", None, 404),
    ]
    assert held(exchanges) == Held(calls=2, forms=1)


@pytest.mark.parametrize(
    ("exchange", "error"),
    [
        (chat({"response_format": FORM}, '{"n": "1"}'), jsonschema.ValidationError),
        (chat({"response_format": FORM}, '{"n": 1'), json.JSONDecodeError),
        (chat({"response_format": FORM}, '{"n": 1}', finish_reason="length"), AssertionError),
        (chat({"response_format": FORM}, '{"n": 1}', status=500), AssertionError),
        (chat(REQUIRED, "No call."), AssertionError),
        (chat(REQUIRED, None, [("f", "{}")]), jsonschema.ValidationError),
        (chat(REQUIRED, None, [("h", '{"n": 1}')]), KeyError),
        (chat(NAMED, None, [("f", '{"n": 1}')]), KeyError),
        (chat({"tools": TOOLS}, None, [("f", "{}")]), jsonschema.ValidationError),
    ],
)
def test_invalid_answers_are_found(exchange: Exchange, error: type[Exception]) -> None:
    with pytest.raises(error):
        held([exchange])
