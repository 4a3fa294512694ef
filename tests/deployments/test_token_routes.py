"""``/tokenize``, ``/detokenize`` and ``/version``, through a gateway to a replica."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import version
from typing import Any

import pytest

from deployments.gateway.access.api_keys import ApiKey, KeyRing
from deployments.gateway.access.rate_limits import RateLimits
from tests.support.deployments.answers import closed_port, error_of
from tests.support.deployments.fake_backend import FakeBackend, token_id
from tests.support.deployments.gateway_harness import (
    ScriptedReplica,
    fake_replica,
    gateway,
    outcomes,
    replica_at,
    scripted,
)

TOOL = {"type": "function", "function": {"name": "time"}}
INPUT_TOKENS = "/v1/responses/input_tokens"
WORDS = [token_id(word) for word in ("one", "two")]


async def test_a_text_in_vllms_shape() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        plain = await running.client.post("/tokenize", json={"prompt": "one two"})
        bare = await running.client.post(
            "/tokenize",
            json={
                "model": "demo",
                "prompt": "one two",
                "add_special_tokens": False,
                "return_token_strs": True,
            },
        )
    special = token_id("<s>")
    assert plain.json() == {
        "count": 3,
        "max_model_len": 4096,
        "tokens": [special, *WORDS],
        "token_strs": None,
    }
    assert bare.json() == {
        "count": 2,
        "max_model_len": 4096,
        "tokens": WORDS,
        "token_strs": [*map(chr, WORDS)],
    }


async def test_a_chat_is_tokenized_as_it_would_run() -> None:
    backend = FakeBackend()
    chat = {
        "model": "demo",
        "messages": [{"role": "user", "content": "one two"}],
        "temperature": 0.5,
        "add_generation_prompt": False,
    }
    async with fake_replica(backend) as one, gateway([one]) as running:
        tokens = await running.client.post("/tokenize", json=chat)
        await running.client.post("/v1/chat/completions", json=chat)
    assert tokens.json()["tokens"] == WORDS
    asked, ran = backend.requests
    assert asked.prompt == ran.prompt
    assert asked.sampling.temperature == ran.sampling.temperature


async def test_a_response_is_counted_as_it_would_run() -> None:
    said = {"input": "one two", "instructions": "Be brief."}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one two"},
    ]
    async with fake_replica() as one, gateway([one]) as running:
        chat = await running.client.post("/tokenize", json={"messages": messages})
        counted = await running.client.post(INPUT_TOKENS, json=said)
        kept = await running.client.post(INPUT_TOKENS, json=said | {"previous_response_id": "r"})
    assert counted.json() == {
        "object": "response.input_tokens",
        "input_tokens": chat.json()["count"],
    }
    assert (kept.status_code, error_of(kept)["param"]) == (400, "previous_response_id")


async def test_no_other_route_is_a_responses_id() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        for method in ("GET", "DELETE"):
            response = await running.client.request(method, INPUT_TOKENS)
            assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed")
        for method in ("GET", "DELETE", "POST"):
            response = await running.client.request(method, "/v1/responses/compact")
            assert response.status_code == 404
            assert "is not served" in error_of(response)["message"]


async def test_llama_cpps_shape() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        post = running.client.post
        plain = await post("/tokenize", json={"content": "one two"})
        special = await post("/tokenize", json={"content": "one two", "add_special": True})
        pieces = await post("/tokenize", json={"content": "one two", "with_pieces": True})
    assert plain.json() == {"tokens": WORDS}
    assert special.json() == {"tokens": [token_id("<s>"), *WORDS]}
    assert pieces.json()["tokens"] == [
        {"id": one, "piece": [chr(one).encode()[0]]} for one in WORDS
    ]


async def test_back_to_text() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        told = await running.client.post("/detokenize", json={"tokens": [*map(ord, "Köln")]})
        empty = await running.client.post("/detokenize", json={"model": "demo", "tokens": []})
    assert told.json() == {"prompt": "Köln", "content": "Köln"}
    assert empty.json() == {"prompt": "", "content": ""}


async def test_the_version_is_the_packages() -> None:
    async with gateway([]) as running:
        response = await running.client.get("/version")
    assert response.json() == {"version": version("pomona-serve")}


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("/tokenize", {}, "prompt", "required: a string"),
    ("/tokenize", {"prompt": 5}, "prompt", "must be a string, not 5"),
    ("/tokenize", {"prompt": ["a"]}, "prompt", "must be a string"),
    ("/tokenize", {"prompt": "a", "content": "a"}, "content", "with prompt"),
    ("/tokenize", {"prompt": "a", "messages": []}, "messages", "with prompt"),
    ("/tokenize", {"prompt": "a", "add_special": True}, "add_special", "not a known field"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens", "a boolean"),
    ("/tokenize", {"prompt": "a", "return_token_strs": "y"}, "return_token_strs", "a boolean"),
    ("/tokenize", {"prompt": "a", "model": ""}, "model", "non-empty string"),
    ("/tokenize", {"content": "a", "parse_special": False}, "parse_special", "not supported"),
    ("/tokenize", {"content": "a", "with_pieces": 1}, "with_pieces", "a boolean"),
    ("/tokenize", {"content": "a", "return_token_strs": True}, "return_token_strs", "known field"),
    ("/tokenize", {"messages": []}, "messages", "non-empty"),
    (
        "/tokenize",
        {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True},
        "add_special_tokens",
        "must be false with messages",
    ),
    (
        "/tokenize",
        {"messages": [{"role": "user", "content": "a"}], "return_token_strs": 1},
        "return_token_strs",
        "a boolean",
    ),
    (
        "/tokenize",
        {"messages": [{"role": "user", "content": "a"}], "colour": 1},
        "colour",
        "not a known field",
    ),
    ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]}, "tools", "no"),
    ("/detokenize", {}, "tokens", "required"),
    ("/detokenize", {"tokens": "a"}, "tokens", "an array of token ids"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]", "an array of token ids"),
    ("/detokenize", {"tokens": [1, "2"]}, "tokens[1]", "an array of token ids"),
    ("/detokenize", {"tokens": [2**30]}, "tokens", str(2**30)),
    ("/detokenize", {"prompt": "a", "tokens": [1]}, "prompt", "not a known field"),
]


async def test_what_is_wrong_is_named() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        for path, body, param, says in BAD:
            response = await running.client.post(path, json=body)
            assert response.status_code == 400, body
            error = error_of(response)
            assert error["param"] == param, body
            assert says in str(error["message"]), body
        assert (await running.client.post("/tokenize", json={"prompt": "a"})).status_code == 200


async def test_a_model_that_is_not_served() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        response = await running.client.post("/tokenize", json={"model": "x", "prompt": "a"})
    assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")


async def test_of_several_models_one_has_to_be_named() -> None:
    other = replica_at("http://nowhere", name="other", model="other")
    async with fake_replica() as one, gateway([one, other]) as running:
        response = await running.client.post("/tokenize", json={"prompt": "a"})
        assert (response.status_code, error_of(response)["param"]) == (400, "model")
        named = await running.client.post("/tokenize", json={"prompt": "a", "model": "demo"})
        assert named.status_code == 200


async def test_a_replica_that_does_not_answer_is_passed_over() -> None:
    gone = replica_at(closed_port(), name="gone")
    async with (
        scripted(ScriptedReplica(chunks=[b"{"], then="vanish"), name="dying") as dying,
        fake_replica(name="well") as well,
        gateway([dying, gone, well]) as running,
    ):
        response = await running.client.post("/tokenize", json={"prompt": "one two"})
    assert response.json()["count"] == 3


async def test_nobody_answers() -> None:
    gone = replica_at(closed_port())
    async with gateway([gone]) as running:
        response = await running.client.post("/tokenize", json={"prompt": "one two"})
    assert (response.status_code, error_of(response)["code"]) == (503, "unavailable")
    assert response.headers["retry-after"] == "1"


async def test_a_full_replica_says_when_to_come_back() -> None:
    async with (
        fake_replica(options={"faults": {"boom": "queue_full"}}) as one,
        gateway([one]) as running,
    ):
        response = await running.client.post("/tokenize", json={"prompt": "boom"})
    assert (response.status_code, error_of(response)["code"]) == (429, "queue_full")
    assert response.headers["retry-after"] == "2"


async def test_keys_and_their_limits_hold_and_no_token_is_paid_for() -> None:
    limits = RateLimits(requests_per_minute=2, tokens_per_minute=100)
    keys = KeyRing([ApiKey.of("one", "good", limits=limits)])
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([one], keys=keys) as running:
        post, body = running.client.post, {"prompt": "one two"}
        assert (await post("/tokenize", json=body)).status_code == 401
        key = {"Authorization": "Bearer good"}
        for left in ("1", "0"):
            response = await post("/tokenize", json=body, headers=key)
            assert response.status_code == 200
            assert response.headers["x-ratelimit-remaining-requests"] == left
            assert response.headers["x-ratelimit-remaining-tokens"] == "100"
        assert (await post("/tokenize", json=body, headers=key)).status_code == 429
        assert not await outcomes(running)
    assert {request.tenant for request in backend.requests} == {"one"}


async def test_a_large_body_and_one_that_is_too_large() -> None:
    async with fake_replica() as one, gateway([one], max_body_bytes=200_000) as running:
        large = await running.client.post("/tokenize", json={"prompt": "a " * 5000 + "b" * 90_000})
        huge = await running.client.post("/tokenize", json={"prompt": "a" * 200_000})
    assert large.status_code == 400
    assert error_of(large)["code"] == "context_length_exceeded"
    assert huge.status_code == 413


async def test_who_leaves_is_not_answered() -> None:
    hanging = ScriptedReplica(chunks=[b"{"], then="hang")
    async with scripted(hanging) as one, gateway([one]) as running:
        asking = asyncio.create_task(running.client.post("/tokenize", json={"prompt": "a"}))
        while not hanging.requests:
            await asyncio.sleep(0.001)
        asking.cancel()
        await hanging.closed.wait()
    headers, body = hanging.requests[0]
    assert json.loads(body) == {"prompt": "a"}
    assert headers["x-request-id"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_only_post(path: str) -> None:
    async with gateway([]) as running:
        assert (await running.client.get(path)).status_code == 405
