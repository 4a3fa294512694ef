"""Answers and chunks of chats, completions and embeddings are of the openai package's own types,
with no member beside those that are listed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.deployments import openai_types
from tests.support.deployments.answers import error_of
from tests.support.deployments.gateway_harness import fake_replica, gateway
from tests.support.deployments.replica_server import events_of
from tests.support.deployments.scripted_backend import ANSWER, Scripted

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("weather", "time")]
USAGE = {"include_usage": True, "continuous_usage_stats": True}
CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "calls and a thought": {"tools": TOOLS, "service_tier": "auto"},
    "calls in the old way": {"functions": [{"name": "weather"}]},
    "logprobs": {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True},
    "token ids": {"n": 2, "return_token_ids": True},
    "prompt": {"prompt_logprobs": 1, "return_token_ids": True},
}
TEXTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"logprobs": 2},
    "echo": {"echo": True, "logprobs": 1},
    "token ids": {"n": 2, "return_token_ids": True},
    "prompt": {"prompt_logprobs": 1, "return_token_ids": True},
}
CASES = [
    *(
        pytest.param(CHAT, {"messages": [{"role": "user", "content": "How?"}], **fields}, id=name)
        for name, fields in CHATS.items()
    ),
    *(
        pytest.param(COMPLETIONS, {"prompt": ["a b", "c"], **fields}, id=f"text, {name}")
        for name, fields in TEXTS.items()
    ),
]


def members(value: Any) -> Iterator[str]:
    """The names of all members, anywhere in it."""
    if isinstance(value, dict):
        yield from value
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            yield from members(one)


@pytest.mark.parametrize(("path", "fields"), CASES)
async def test_whole_and_streamed(path: str, fields: dict[str, Any]) -> None:
    backend = Scripted(ANSWER)
    async with fake_replica(backend) as one, gateway([one]) as running:
        body = {"model": "demo", **fields}
        whole = await running.client.post(path, json=body)
        streamed = await running.client.post(
            path, json={**body, "stream": True, "stream_options": USAGE}
        )
    assert whole.status_code == 200
    openai_types.answer(path, whole.json())
    if "prompt_logprobs" in fields:
        # They come whole alone.
        assert error_of(streamed)["param"] == "prompt_logprobs"
        return
    assert streamed.status_code == 200
    *told, last = [one for one in events_of(streamed.text) if not str(one).startswith(":")]
    assert last == "[DONE]"
    assert len(told) > 5
    for event in told:
        openai_types.event(path, event)


async def test_every_member_of_ours_is_met() -> None:
    """The list has none that was given up."""
    met: set[str] = set()
    async with fake_replica(Scripted(ANSWER)) as one, gateway([one]) as running:
        for case in CASES:
            path, fields = case.values
            body = {"model": "demo", **fields}
            answer = await running.client.post(path, json=body)
            met |= {*members(answer.json())}
    assert met >= set().union(*openai_types.OURS.values())


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_vectors(encoding: str) -> None:
    async with fake_replica() as one, gateway([one]) as running:
        body = {"model": "demo", "input": ["a", "b"], "encoding_format": encoding}
        answer = await running.client.post(EMBEDDINGS, json=body)
    told = openai_types.answer(EMBEDDINGS, answer.json())
    assert {type(one.embedding) for one in told.data} == {str if encoding == "base64" else list}


async def test_what_the_package_does_not_know_is_noticed() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        body = {"model": "demo", "messages": [{"role": "user", "content": "a"}]}
        good = (await running.client.post(CHAT, json=body)).json()
    openai_types.answer(CHAT, good)
    for place in (good, good["choices"][0], good["choices"][0]["message"], good["usage"]):
        place["surprise"] = 1
        with pytest.raises(AssertionError, match="surprise"):
            openai_types.answer(CHAT, good)
        del place["surprise"]
    with pytest.raises(ValidationError):
        openai_types.answer(CHAT, {**good, "created": str(good["created"])})
