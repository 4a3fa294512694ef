"""A coding agent by each of the three APIs: 200 KB of tools around a short prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ops.bench.overload.client import DONE, MAX_TOKENS, Client

NUM_TOOLS = 40
DESCRIPTION = "Reads or changes what the file holds. " * 90


class Api(NamedTuple):
    name: str
    path: str
    chunk: bytes
    """In each event with a token."""
    ends: tuple[bytes, ...]
    """One of them is in the last event of a whole answer, which may repeat the tools."""
    body: Callable[[str], dict[str, Any]]
    """From a prompt; no tool can be called, so that a small context holds it."""


def _schema(number: int) -> dict[str, Any]:
    property_ = {"type": "string", "description": f"Argument {number} of the tool. " * 4}
    properties = {f"argument_{index}": property_ for index in range(12)}
    return {"type": "object", "properties": properties, "required": ["argument_0"]}


def _functions(parameters: str) -> list[dict[str, Any]]:
    return [
        {"name": f"tool_{number}", "description": DESCRIPTION, parameters: _schema(number)}
        for number in range(NUM_TOOLS)
    ]


def _chat(prompt: str) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": prompt}],
        "tools": [{"type": "function", "function": one} for one in _functions("parameters")],
        "tool_choice": "none",
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
    }


def _message(prompt: str) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": prompt}],
        "tools": _functions("input_schema"),
        "tool_choice": {"type": "none"},
        "max_tokens": MAX_TOKENS,
    }


def _response(prompt: str) -> dict[str, Any]:
    return {
        "input": prompt,
        "tools": [{"type": "function", **one} for one in _functions("parameters")],
        "tool_choice": "none",
        "max_output_tokens": MAX_TOKENS,
        "store": False,
    }


APIS = (
    Api("chat", "/v1/chat/completions", b'"object":"chat.completion.chunk"', (DONE,), _chat),
    Api(
        "messages",
        "/v1/messages",
        b"event: content_block_delta",
        (b"event: message_stop",),
        _message,
    ),
    Api(
        "responses",
        "/v1/responses",
        b"event: response.output_text.delta",
        (b"event: response.completed", b"event: response.incomplete"),
        _response,
    ),
)


@dataclass
class Agent(Client):
    api: Api = field(kw_only=True, default=APIS[0])

    def _request(self) -> bytes:
        body = self._body.replace(b"THE PROMPT", next(self._prompts).encode())
        head = (
            f"POST {self.api.path} HTTP/1.1\r\nHost: {urlsplit(self.url).netloc}\r\n"
            f"Authorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    @cached_property
    def _body(self) -> bytes:
        """Encoded once: a client's own work is not what is measured."""
        fixed = {"model": self.model, "temperature": 0, "stream": True}
        return json.dumps({**fixed, **self.api.body("THE PROMPT")}).encode()
