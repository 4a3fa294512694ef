"""What the gateway tells the engine of whose request it is, and what it keeps apart for that."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from deployments.gateway.access.api_keys import ApiKey, KeyRing, key_digest
from deployments.gateway.routing import PrefixAffinity, Work
from deployments.settings import RoutingSettings
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import Running, fake_replica, gateway

PATH = "/v1/completions"
PROMPT = " ".join(f"word{number}" for number in range(200))
KEYS = KeyRing(
    [
        ApiKey.of("alice", "alices", "alices-new"),
        ApiKey("bob", (key_digest("bobs"),), priority=-5, weight=3.0),
        ApiKey("line-1", (key_digest("unnamed"),), is_named=False),
    ]
)


@asynccontextmanager
async def running(backend: FakeBackend, **settings: Any) -> AsyncIterator[Running]:
    async with fake_replica(backend) as one, gateway([one], keys=KEYS, **settings) as running:
        yield running


async def cached_tokens(running: Running, key: str, **fields: Any) -> int:
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": 1, **fields}
    headers = {"Authorization": f"Bearer {key}"}
    answer = (await running.client.post(PATH, json=body, headers=headers)).json()
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


async def test_no_tenant_finds_anothers_prompts() -> None:
    async with running(FakeBackend(), isolate_tenants=True) as gate:
        assert await cached_tokens(gate, "alices") == 0
        assert await cached_tokens(gate, "alices") > 100
        # A new key of the same holder.
        assert await cached_tokens(gate, "alices-new") > 100
        for other in ("bobs", "unnamed"):
            assert await cached_tokens(gate, other) == 0
            assert await cached_tokens(gate, other) > 100


async def test_no_salt_of_a_client_reaches_another_tenant() -> None:
    async with running(FakeBackend(), isolate_tenants=True) as gate:
        await cached_tokens(gate, "alices")
        await cached_tokens(gate, "alices", cache_salt="salt")
        for salt in ("alice", '["alice", ""]', '["alice", "salt"]', "alice:salt", "salt", ""):
            assert await cached_tokens(gate, "bobs", cache_salt=salt) == 0
        assert await cached_tokens(gate, "alices", cache_salt="salt") > 100
        assert await cached_tokens(gate, "alices", cache_salt="pepper") == 0


async def test_unless_asked_for_tenants_share_what_they_have_in_common() -> None:
    async with running(FakeBackend()) as gate:
        assert await cached_tokens(gate, "alices") == 0
        assert await cached_tokens(gate, "bobs") > 100
        assert await cached_tokens(gate, "bobs", cache_salt="salt") == 0


async def test_a_keys_priority_is_added_to_the_requests() -> None:
    backend = FakeBackend()
    async with running(backend, allow_priority=True) as gate:
        for key, fields in (("bobs", {}), ("bobs", {"priority": 2}), ("alices", {"priority": 2})):
            await cached_tokens(gate, key, **fields)
    assert [request.priority for request in backend.requests] == [-5, -3, 2]


@pytest.mark.parametrize("isolate_tenants", [False, True])
async def test_the_engine_is_told_whom_a_request_is_for(isolate_tenants: bool) -> None:
    backend = FakeBackend()
    async with running(backend, isolate_tenants=isolate_tenants) as gate:
        for key in ("alices", "bobs", "alices-new", "unnamed"):
            await cached_tokens(gate, key)
    unnamed = key_digest("unnamed").hex()
    assert [(request.tenant, request.weight) for request in backend.requests] == [
        ("alice", 1.0),
        ("bob", 3.0),
        ("alice", 1.0),
        (unnamed, 1.0),
    ]


async def test_without_keys_a_request_is_for_nobody_in_particular() -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([one], isolate_tenants=True) as gate:
        await gate.client.post(PATH, json={"model": "demo", "prompt": ["a", "b"], "n": 2})
        await gate.client.post(PATH, json={"model": "demo", "prompt": "a"})
    assert {(item.tenant, item.weight, item.cache_salt) for item in backend.requests} == {
        ("", 1.0, "")
    }
    first, second, other = [request.group for request in backend.requests]
    assert first == second != other


async def test_a_client_cannot_write_its_own_envelope() -> None:
    backend = FakeBackend()
    async with running(backend, isolate_tenants=True) as gate:
        forged = {
            "answer_id": "x",
            "created": 1,
            "seed": 1,
            "tenant": "alice",
            "weight": 99,
            "priority": -9,
        }
        headers = {
            "Authorization": "Bearer bobs",
            "X-Pomona-Envelope": httpx.Response(200, json=forged).text,
        }
        answer = await gate.client.post(
            PATH, json={"model": "demo", "prompt": "a"}, headers=headers
        )
        assert answer.json()["id"] != "cmpl-x"
    [request] = backend.requests
    assert (request.priority, request.cache_salt) == (-5, '["bob", ""]')
    assert (request.tenant, request.weight) == ("bob", 3.0)


async def test_tenants_meet_replicas_of_their_own() -> None:
    seen: list[Work] = []

    class Recording(PrefixAffinity):
        def choose(self, work: Work, candidates: Any) -> Any:
            seen.append(work)
            return super().choose(work, candidates)

    async with running(
        FakeBackend(), router=Recording(RoutingSettings()), isolate_tenants=True
    ) as gate:
        for key in ("alices", "bobs", "alices-new"):
            await cached_tokens(gate, key)
    alice, bob, alice_again = [set(work.affinity.keys) for work in seen]
    assert alice == alice_again
    assert alice
    assert not alice & bob


async def test_logs_name_the_key_and_hold_neither_it_nor_the_prompt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with running(FakeBackend()) as gate:
            await cached_tokens(gate, "alices")
            await cached_tokens(gate, "bobs")
            wrong = {"Authorization": "Bearer a-wrong-key"}
            assert (await gate.client.post(PATH, json={}, headers=wrong)).status_code == 401
            broken = {"model": "demo", "prompt": PROMPT, "temperature": PROMPT}
            headers = {"Authorization": "Bearer bobs"}
            assert (await gate.client.post(PATH, json=broken, headers=headers)).status_code == 400
    # The client of this test logs what it sends.
    server = [one for one in caplog.records if not one.name.startswith(("httpx", "httpcore"))]
    text = "\n".join(one.getMessage() for one in server)
    assert "key=alice " in text
    assert "key=bob " in text
    for secret in ("alices", "bobs", "a-wrong-key", "word17", "the-deployments-secret", "Bearer"):
        assert secret not in text, secret


async def test_prompts_are_logged_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="deployments"):
        async with running(FakeBackend(), log_prompts=True) as gate:
            body = b'{"model": "demo",\r\n"prompt": "a\\nquestion"}'
            headers = {"Authorization": "Bearer bobs", "X-Request-Id": "one"}
            assert (await gate.client.post(PATH, content=body, headers=headers)).status_code == 200
    [line] = [message for message in caplog.messages if "question" in message]
    assert line == 'request_id=one body={"model": "demo",  "prompt": "a\\nquestion"}'


@pytest.mark.parametrize(
    "control", ["\x7f", "\x80", "\x85", "\x9b", "\u2028", "\u2029", "\u202e", "\u2066", "\u200f"]
)
async def test_a_logged_prompt_forges_no_line_and_commands_no_terminal(
    caplog: pytest.LogCaptureFixture, control: str
) -> None:
    with caplog.at_level(logging.INFO, logger="deployments"):
        async with running(FakeBackend(), log_prompts=True) as gate:
            body = json.dumps({"model": "demo", "prompt": f"a{control}b"}, ensure_ascii=False)
            headers = {"Authorization": "Bearer bobs"}
            answer = await gate.client.post(PATH, content=body.encode(), headers=headers)
            assert answer.status_code == 200
    [line] = [message for message in caplog.messages if " body=" in message]
    assert control not in line
    assert json.loads(line.partition(" body=")[2])["prompt"] == f"a{control}b"
