"""Prompts that fit nowhere, however they are tokenized: no replica is asked."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from backend_metal.engine.text.prompt import PromptEncoder
from deployments.backend import ChatPrompt, ContextLengthError, GenerationRequest, SamplingParams
from deployments.gateway.access.api_keys import ApiKey, KeyRing
from deployments.gateway.access.rate_limits import RateLimiter, RateLimits
from deployments.protocol import GENERATION_PATHS, parse_request
from deployments.protocol.prompt_length import context_error
from tests.support.clock import Clock
from tests.support.deployments.gateway_harness import ScriptedReplica, gateway, replica_at, scripted

pytestmark = pytest.mark.serve

CHAT, COMPLETIONS, RESPONSES, MESSAGES = GENERATION_PATHS
LONGEST, CONTEXT = 8, 4096
LONG = "x" * (LONGEST * CONTEXT)
TURN = [{"role": "user", "content": LONG}]


def answering() -> ScriptedReplica:
    return ScriptedReplica(chunks=[b"{}"], headers=[(b"content-type", b"application/json")])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": LONG}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", LONG]}, "prompt"),
        (COMPLETIONS, {"prompt": [7] * CONTEXT}, "prompt"),
        (COMPLETIONS, {"prompt": LONG + LONG[:LONGEST], "max_tokens": 0, "echo": True}, "prompt"),
        (CHAT, {"messages": TURN}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}, None),
        (RESPONSES, {"input": LONG}, "input"),
        (MESSAGES, {"messages": TURN, "max_tokens": 9}, None),
    ],
)
async def test_the_gateway_refuses_them(path: str, body: dict[str, Any], param: str | None) -> None:
    replica = answering()
    async with (
        scripted(replica) as where,
        gateway([replica_at(where.url, longest_token=LONGEST)]) as running,
    ):
        refused = await running.client.post(path, json={"model": "demo", **body})
    assert refused.status_code == 400
    error = refused.json()["error"]
    told = f"maximum context length is {CONTEXT} tokens"
    if path == MESSAGES:
        told = f"tokens > {CONTEXT - 1} maximum"
    assert told in error["message"]
    assert param in (None, error.get("param"))
    assert replica.requests == []


@pytest.mark.parametrize(
    ("body", "longest_token"),
    [
        ({"prompt": LONG[LONGEST:]}, LONGEST),
        ({"prompt": LONG, "max_tokens": 0, "echo": True}, LONGEST),
        # Of which only so much is read.
        ({"prompt": LONG, "truncate_prompt_tokens": 9}, LONGEST),
        # Nobody knows.
        ({"prompt": LONG}, 0),
    ],
)
async def test_what_may_fit_is_for_a_replica_to_say(
    body: dict[str, Any], longest_token: int
) -> None:
    replica = answering()
    async with (
        scripted(replica) as where,
        gateway([replica_at(where.url, longest_token=longest_token)]) as running,
    ):
        await running.client.post(COMPLETIONS, json={"model": "demo", **body})
    assert len(replica.requests) == 1


async def test_one_replica_that_has_room_is_enough() -> None:
    replica = answering()
    async with scripted(replica) as where:
        narrow = replica_at(where.url, name="narrow", longest_token=1)
        wide = replica_at(where.url, name="wide", longest_token=LONGEST)
        async with gateway([narrow, wide]) as running:
            body = {"model": "demo", "prompt": LONG[LONGEST:]}
            await running.client.post(COMPLETIONS, json=body)
    assert len(replica.requests) == 1


async def test_they_are_charged_as_if_a_replica_had_read_them() -> None:
    keys = KeyRing(
        [ApiKey.of("alice", "secret", limits=RateLimits(tokens_per_minute=10 * CONTEXT))]
    )
    limiter = RateLimiter(clock=Clock())
    async with (
        scripted(answering()) as where,
        gateway([replica_at(where.url, longest_token=LONGEST)], keys=keys, limiter=limiter) as one,
    ):
        headers = {"Authorization": "Bearer secret"}
        body = {"model": "demo", "prompt": LONG, "max_tokens": 1}
        statuses, left = [], []
        for _ in range(3):
            answer = await one.client.post(COMPLETIONS, json=body, headers=headers)
            statuses.append(answer.status_code)
            left.append(int(answer.headers["x-ratelimit-remaining-tokens"]))
    assert statuses == [400] * 3
    # Each for as much as the context holds; what is left is told as a request is let in.
    assert [before - after for before, after in pairwise(left)] == [CONTEXT] * 2


TEXTS = st.text("ab c", max_size=40)
BODIES = st.one_of(
    st.fixed_dictionaries(
        {"prompt": st.one_of(TEXTS.filter(bool), st.lists(st.integers(0, 9), min_size=1))}
    ),
    st.fixed_dictionaries({"messages": st.lists(TEXTS.filter(bool), min_size=1, max_size=3)}),
)


@given(BODIES, st.integers(0, 5), st.integers(1, 20))
def test_an_engine_would_say_the_same(body: dict[str, Any], most: int, context: int) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1, "abc": 2, "-": 3}, "-")),
        chat_template="{{ messages[0].content }}",
    )
    encoder = PromptEncoder(tokenizer, vocab_size=10, max_model_len=context)
    sent, path = {"model": "demo", "max_tokens": most, **body}, COMPLETIONS
    prompt: Any = body.get("prompt")
    if prompt is None:
        path = CHAT
        messages = [{"role": "user", "content": text} for text in body["messages"]]
        sent["messages"], prompt = messages, ChatPrompt(tuple(messages))
    prompt = tuple(prompt) if isinstance(prompt, list) else prompt
    request = GenerationRequest("a", prompt, SamplingParams(max_tokens=most))
    engines: ContextLengthError | None = None
    try:
        encoder.check_size(request)
    except ContextLengthError as error:
        engines = error
    found = context_error(
        parse_request(path, json.dumps(sent).encode()),
        max_model_len=context,
        longest_token=encoder.longest_token,
    )
    assert (found is None) == (engines is None)
    if found is not None and engines is not None:
        assert (found.message, found.param, found.code) == (
            str(engines),
            engines.param,
            engines.code,
        )
