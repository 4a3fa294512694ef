"""The requests of a run: the same ones each time, greedy and sampled, of all lengths."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SUBJECTS = (
    "Pomona",
    "an apple orchard",
    "a load balancer",
    "the prefix cache",
    "Ray Serve",
    "a Mac mini",
    "continuous batching",
    "the weather",
)
QUESTIONS = ("What is {}?", "Tell me about {}.", "How does one keep {}?", "Why {}, and why now?")


SCHEMA = {
    "type": "object",
    "properties": {
        "rows": {
            "type": "array",
            "minItems": 12,
            "maxItems": 20,
            "items": {"type": "string", "minLength": 20, "maxLength": 40},
        }
    },
    "required": ["rows"],
    "additionalProperties": False,
}
"""Its instances are as long as other answers."""
TOOL = "write_rows"
"""Whose arguments they are."""
THOUGHT_TOKENS = 200
"""Where a request may say so; where not, its effort stands for 512."""
LONG_ENOUGH = 1500
"""In tokens, for a thought and what follows it."""


Form = Literal["text", "json", "call"]


@dataclass(frozen=True)
class Request:
    path: str
    body: dict[str, Any]
    form: Form = "text"
    """Of what it must be answered."""
    thinks: bool = False
    """Whether a thought comes first."""
    resumable: bool = False
    """Whether its client comes back when it is cut off."""
    uncached: bool = False
    """Whether each stream's prompt is new to the prefix cache."""


@dataclass(frozen=True, eq=False)
class Clients:
    """One for each request, which it sends again and again."""

    requests: Sequence[Request]


def requests(
    count: int,
    *,
    seed: int = 5,
    tokens: tuple[int, int] = (150, 400),
    stream: bool = True,
    resumable: bool = False,
) -> list[Request]:
    """Every second one samples. Of each sort half are chats, and some want logprobs. If they are
    streamed, every second one wants JSON, a call of a tool or a thought, by any of three APIs."""
    rng = random.Random(seed)
    plain = [_request(rng, number, rng.randint(*tokens), stream) for number in range(count)]
    return [replace(one, resumable=resumable) for one in plain]


def long_prompt(words: int = 2400) -> Request:
    """Nearly as long as the demo model's context."""
    rng = random.Random(words)
    text = " ".join(rng.choice(SUBJECTS) for _ in range(words))
    body = {
        "model": "demo",
        "stream": True,
        "max_tokens": 100,
        "temperature": 0,
        "ignore_eos": True,
    }
    body |= {"prompt": text, "stream_options": {"include_usage": True}}
    return Request("/v1/completions", body, resumable=True, uncached=True)


def _request(rng: random.Random, number: int, max_tokens: int, stream: bool) -> Request:
    text = " ".join(
        rng.choice(QUESTIONS).format(rng.choice(SUBJECTS)) for _ in range(rng.randint(1, 12))
    )
    body: dict[str, Any] = {
        "model": "demo",
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
        "max_tokens": max_tokens,
        "ignore_eos": True,
        **({"temperature": 0} if number % 2 else {"seed": number, "temperature": 1, "top_p": 0.95}),
    }
    if stream and (sort := _SORTS.get(number % 20)):
        path, form, thinks = sort
        return Request(path, _ASK[path](body, text, form, thinks), form, thinks)
    with_logprobs = number % 10 < 2
    if number % 4 < 2:
        body |= {"messages": [{"role": "user", "content": text}]}
        return Request(CHAT, body | ({"logprobs": True} if with_logprobs else {}))
    return Request(
        "/v1/completions", body | {"prompt": text} | ({"logprobs": 1} if with_logprobs else {})
    )


def _of_chat(body: dict[str, Any], text: str, form: Form, thinks: bool) -> dict[str, Any]:
    asked = body | {"messages": [{"role": "user", "content": text}], "enable_thinking": thinks}
    if thinks:
        budget = min(THOUGHT_TOKENS, body["max_tokens"] // 2)
        asked |= {"thinking_token_budget": budget}
    match form:
        case "text":
            return asked
        case "json":
            named = {"type": "json_schema", "json_schema": {"name": "rows", "schema": SCHEMA}}
            asked |= {"response_format": named}
        case "call":
            function = {"name": TOOL, "parameters": SCHEMA, "strict": True}
            asked |= {
                "tools": [{"type": "function", "function": function}],
                "tool_choice": "required",
                "parallel_tool_calls": False,
            }
    return asked | {"max_tokens": LONG_ENOUGH}


def _of_responses(body: dict[str, Any], text: str, form: Form, thinks: bool) -> dict[str, Any]:
    asked = _without_seed(body) | {
        "input": text,
        "max_output_tokens": LONG_ENOUGH,
        "reasoning": {"effort": "minimal" if thinks else "none"},
    }
    if form == "json":
        named = {"type": "json_schema", "name": "rows", "schema": SCHEMA}
        return asked | {"text": {"format": named}}
    function = {"type": "function", "name": TOOL, "parameters": SCHEMA, "strict": True}
    return asked | {
        "tools": [function],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }


def _of_messages(body: dict[str, Any], text: str, form: Form, thinks: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    budget = {"type": "enabled", "budget_tokens": THOUGHT_TOKENS}
    asked = _without_seed(body) | {
        "messages": messages,
        "max_tokens": LONG_ENOUGH,
        "thinking": budget if thinks else {"type": "disabled"},
    }
    if form == "json":
        named = {"type": "json_schema", "schema": SCHEMA}
        return asked | {"output_config": {"format": named}}
    tool = {"name": TOOL, "input_schema": SCHEMA, "strict": True}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    return asked | {"tools": [tool], "tool_choice": choice}


def _without_seed(body: dict[str, Any]) -> dict[str, Any]:
    """The other two APIs have none, and so are greedy."""
    return {"model": body["model"], "stream": True, "temperature": 0}


_ASK = {CHAT: _of_chat, RESPONSES: _of_responses, MESSAGES: _of_messages}
_SORTS: Mapping[int, tuple[str, Form, bool]] = {
    4: (CHAT, "json", False),
    5: (RESPONSES, "json", False),
    7: (MESSAGES, "json", False),
    8: (CHAT, "call", False),
    9: (RESPONSES, "call", False),
    13: (MESSAGES, "call", False),
    14: (CHAT, "text", True),
    15: (MESSAGES, "json", True),
    17: (RESPONSES, "json", True),
    19: (CHAT, "call", True),
}
"""By a request's number, of each twenty."""
