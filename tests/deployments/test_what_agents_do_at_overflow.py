"""Agents make room when they know an error as one of a context that is full. Each knows it by what
stands here, which is copied from its package."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.deployments.gateway_harness import fake_replica, gateway, replica_at

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
CONTEXT, WORDS = 4096, 5000
LONG = "w " * WORDS
BODIES: Mapping[str, Mapping[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": LONG}], "max_tokens": 32_000},
    MESSAGES: {"messages": [{"role": "user", "content": LONG}], "max_tokens": 32_000},
    RESPONSES: {"input": LONG},
}


@dataclass(frozen=True)
class Told:
    status: int
    body: str
    error: Mapping[str, Any]

    @property
    def message(self) -> str:
        return str(self.error["message"])


def finds(*patterns: str) -> Callable[[Told], bool]:
    """Each of which is enough for the agent, in whatever it makes of the message."""
    return lambda told: all(re.search(one, told.message, re.IGNORECASE) for one in patterns)


def has_code(told: Told) -> bool:
    return told.error["code"] == "context_length_exceeded"


def is_over(pattern: str, *, has_limit_first: bool = False) -> Callable[[Told], bool]:
    """Whether the agent reads in it how far to go."""

    def reads(told: Told) -> bool:
        found = re.search(pattern, told.message, re.IGNORECASE)
        tokens, limit = (
            map(int, found.groups()[:: -1 if has_limit_first else 1]) if found else (0, 0)
        )
        return tokens > limit > 0

    return reads


CLAUDE_GAP = r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)"
QWEN_MESSAGES = r"(\d[\d,]*)\s*tokens?\s*>\s*(\d[\d,]*)"
QWEN_CHAT = (
    r"maximum context length is\s*(\d[\d,]*)\s*tokens?[\s\S]*?(?:resulted in|requested|used)\s*"
    r"(\d[\d,]*)\s*tokens?"
)
LITELLM = re.compile("this model's maximum context length is|prompt is too long")
KNOWN_BY: Mapping[str, tuple[str, Callable[[Told], bool]]] = {
    "Claude Code 2.1.332": (MESSAGES, finds("prompt is too long")),
    "Claude Code 2.1.332, how far": (MESSAGES, is_over(CLAUDE_GAP)),
    "Codex 0.171.0": (RESPONSES, lambda told: told.status == 400 and has_code(told)),
    "OpenCode 1.18.33": (
        CHAT,
        finds(
            "reduce the length of the messages",
            r"maximum context length is \d+ tokens",
            "context[_ ]length[_ ]exceeded",
        ),
    ),
    "OpenCode 1.18.33, by its body": (CHAT, has_code),
    "Qwen Code 0.24.4": (CHAT, finds(r"\bmaximum context length\b")),
    "Qwen Code 0.24.4, how far": (CHAT, is_over(QWEN_CHAT, has_limit_first=True)),
    "Qwen Code 0.24.4, as Anthropic's": (MESSAGES, is_over(QWEN_MESSAGES)),
    "Continue 1.5.47": (CHAT, finds("maximum context length")),
    "pi 0.73.1": (CHAT, finds("reduce the length of the messages")),
    "pi 0.73.1, as Anthropic's": (MESSAGES, finds("prompt is too long")),
    "LiteLLM 1.110.2": (CHAT, lambda told: bool(LITELLM.search(told.body.lower()))),
    "LiteLLM 1.110.2, anthropic/": (MESSAGES, lambda told: bool(LITELLM.search(told.body.lower()))),
}
NO_OVERFLOW = re.compile(
    "rate limit|too many requests|^throttling error|^service unavailable", re.I
)
"""Who reads one of these takes it for something else (pi, OpenCode)."""


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("longest_token", [0, 1], ids=["by an engine", "by the gateway"])
async def test_an_agent_knows_that_its_context_is_full(longest_token: int, streams: bool) -> None:
    async with (
        fake_replica() as one,
        gateway([replica_at(one.url, longest_token=longest_token)]) as running,
    ):
        for agent, (path, knows) in KNOWN_BY.items():
            asked = {"model": "demo", "stream": streams, **BODIES[path]}
            response = await running.client.post(path, json=asked)
            told = Told(response.status_code, response.text, json.loads(response.text)["error"])
            assert told.status == 400, agent
            assert knows(told), (agent, told)
            assert not NO_OVERFLOW.search(told.message), (agent, told)


async def test_an_answer_that_does_not_fit_is_as_long_as_there_is_room() -> None:
    """Claude Code asks for 32,000 tokens of any model that it does not know."""
    asked = {**BODIES[MESSAGES], "messages": [{"role": "user", "content": "w " * (CONTEXT - 9)}]}
    async with fake_replica() as one, gateway([one]) as running:
        response = await running.client.post(MESSAGES, json={"model": "demo", **asked})
    assert response.status_code == 200, response.text
    assert response.json()["stop_reason"] == "model_context_window_exceeded"
