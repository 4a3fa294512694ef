"""The requests of a run: the same ones each time, greedy and sampled, of all lengths."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

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


@dataclass(frozen=True)
class Request:
    path: str
    body: dict[str, Any]
    resumable: bool = False
    """Whether its client comes back when it is cut off."""


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
    """Every second one samples; of each sort half are chats, some want logprobs, and some JSON: by
    each of the three APIs, if they are streamed."""
    rng = random.Random(seed)
    plain = [_request(rng, number, rng.randint(*tokens), stream) for number in range(count)]
    return [replace(one, resumable=resumable) for one in plain]


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
    if stream and number % 10 in _OF_JSON:
        return _of_json(number, text, body)
    with_logprobs = number % 10 < 2
    if number % 4 < 2:
        body |= {"messages": [{"role": "user", "content": text}]}
        return Request("/v1/chat/completions", body | ({"logprobs": True} if with_logprobs else {}))
    return Request(
        "/v1/completions", body | {"prompt": text} | ({"logprobs": 1} if with_logprobs else {})
    )


def _of_json(number: int, text: str, body: dict[str, Any]) -> Request:
    """Which must match ``SCHEMA``."""
    messages = [{"role": "user", "content": text}]
    named = {"type": "json_schema", "name": "rows", "schema": SCHEMA}
    plain = {"model": body["model"], "stream": True, "temperature": 0}
    match _OF_JSON[number % 10]:
        case "chat":
            form = {"type": "json_schema", "json_schema": {"name": "rows", "schema": SCHEMA}}
            chat = body | {"messages": messages, "response_format": form, "max_tokens": 900}
            return Request("/v1/chat/completions", chat)
        case "responses":
            asked = {"input": text, "text": {"format": named}, "max_output_tokens": 900}
            return Request("/v1/responses", plain | asked)
        case _:
            form = {"type": "json_schema", "schema": SCHEMA}
            asked = {"messages": messages, "output_config": {"format": form}, "max_tokens": 900}
            return Request("/v1/messages", plain | asked)


_OF_JSON = {4: "chat", 5: "chat", 7: "responses", 9: "messages"}
"""By the last digit of a request's number. The other two APIs have no seeds, and so are greedy."""
