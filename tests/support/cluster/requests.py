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
    """Every second one samples; of each sort half are chats, and some want logprobs."""
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
    with_logprobs = number % 10 < 2
    if number % 4 < 2:
        body |= {"messages": [{"role": "user", "content": text}]}
        return Request("/v1/chat/completions", body | ({"logprobs": True} if with_logprobs else {}))
    return Request(
        "/v1/completions", body | {"prompt": text} | ({"logprobs": 1} if with_logprobs else {})
    )
