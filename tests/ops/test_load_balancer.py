"""Requests through real load balancers: what reaches a gateway, what comes back, and when."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from starlette.responses import JSONResponse
from starlette.routing import Route

from deployments.settings import GatewaySettings
from ops.load_balancer.plan import ClientLimits
from tests.support.deployments.gateway_harness import CHAT, Running, fake_replica, gateway
from tests.support.ops.balancer_harness import (
    DEADLINE_S,
    PATH,
    FakeGateway,
    balancing,
    each_balancer,
    gateways,
    plan_for,
    until,
)

pytestmark = [pytest.mark.serve, each_balancer]


def address(running: Running) -> str:
    return running.url.removeprefix("http://")


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_events_arrive_one_by_one(kind: str, tmp_path: Path) -> None:
    async with gateways(1) as [one], balancing(kind, plan_for(tmp_path, [one])) as balancer:
        one.streams = True
        request = balancer.client.build_request("POST", PATH, json={})
        one.events.put_nowait("first")
        response = await balancer.client.send(request, stream=True)
        events = response.aiter_lines()
        for event in ("first", "second", "third"):
            # The next event is sent when this one has come.
            assert await anext(events) == f"data: {event}"
            assert await anext(events) == ""
            one.events.put_nowait({"first": "second", "second": "third"}.get(event))
        assert [line async for line in events] == []


async def test_the_openai_client_works_through_it(kind: str, tmp_path: Path) -> None:
    keys = ["a-key"]
    async with (
        fake_replica() as replica,
        gateway([replica], keys=keys) as one,
        gateway([replica], keys=keys) as two,
        balancing(kind, plan_for(tmp_path, [address(one), address(two)])) as balancer,
        AsyncOpenAI(base_url=f"{balancer.url}/v1", api_key="a-key") as client,
    ):
        ask: dict[str, Any] = {"model": "demo", "messages": CHAT["messages"]}
        whole = await client.chat.completions.create(**ask)
        assert whole.choices[0].message.content == "one two three"
        stream = await client.chat.completions.create(**ask, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == "one two three"
        wrong = await balancer.ask(json=CHAT, headers={"Authorization": "Bearer b-key"})
        assert (wrong.status_code, error_of(wrong)["code"]) == (401, "invalid_api_key")


async def test_a_gateway_without_keys_is_not_opened_to_the_world(kind: str, tmp_path: Path) -> None:
    async with fake_replica() as replica, gateway([replica]) as running:
        assert (await running.client.post(PATH, json=CHAT)).status_code == 200
        plan = plan_for(tmp_path, [address(running)])
        async with balancing(kind, plan) as balancer:
            claims = {"Host": "localhost", "X-Forwarded-For": "", "X-Real-IP": "127.0.0.1"}
            for headers in ({}, claims, {"Connection": "X-Forwarded-For"}):
                refused = await balancer.ask(json=CHAT, headers=headers)
                # Or, as such a gateway does not let health checks of others in either, it is down.
                expected = {403: "loopback_only", 503: "unavailable"}
                assert error_of(refused)["code"] == expected[refused.status_code]


async def test_a_client_does_not_say_where_it_is(kind: str, tmp_path: Path) -> None:
    async with gateways(1) as [one], balancing(kind, plan_for(tmp_path, [one])) as balancer:
        claims = ("X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Forwarded-Proto")
        await balancer.ask(headers=dict.fromkeys(claims, "10.6.6.6"))
        seen = one.requests[0].headers
        assert seen["x-forwarded-for"] == "127.0.0.1"
        assert seen["x-forwarded-proto"] == "http"
        assert "10.6.6.6" not in seen.values()


@pytest.mark.parametrize(
    ("given", "kept"), [("job-7/a", True), (None, False), ("two words", True)], ids=str
)
async def test_a_request_has_one_id_everywhere(
    kind: str, tmp_path: Path, given: str | None, kept: bool
) -> None:
    async with gateways(1) as [one], balancing(kind, plan_for(tmp_path, [one])) as balancer:
        await balancer.ask(headers={"X-Request-Id": given} if given else {})
        passed = one.requests[0].headers["x-request-id"]
        assert (passed == given) == kept
        if given == "two words":
            # The gateway refuses it; it would forge fields of a log line.
            await until(lambda: "request_id=" in balancer.logged())
            assert "two words" not in balancer.logged()
        else:
            await until(lambda: f"request_id={passed} " in balancer.logged())


async def test_neither_keys_nor_prompts_are_logged(kind: str, tmp_path: Path) -> None:
    async with gateways(1) as [one], balancing(kind, plan_for(tmp_path, [one])) as balancer:
        await balancer.ask(
            json={"messages": "a-prompt"},
            headers={"Authorization": "Bearer a-key"},
            params={"key": "a-key"},
        )
        assert one.requests[0].headers["authorization"] == "Bearer a-key"
        assert b"a-prompt" in one.requests[0].body
        await until(lambda: f"POST {PATH} " in balancer.logged())
        text = balancer.logged() + balancer.log.read_text()
        assert one.address in text
        assert "a-key" not in text
        assert "a-prompt" not in text


HIDDEN = {"/metrics", "/targets"}


@pytest.mark.parametrize("page", [True, False])
async def test_whatever_else_a_gateway_serves_gets_to_it(
    kind: str, tmp_path: Path, page: bool
) -> None:
    async with fake_replica() as replica, gateway([replica], watches=True, page=page) as running:
        routes = [route for route in running.app.routes if isinstance(route, Route)]
    async with gateways(1) as [one]:
        plan = plan_for(tmp_path, [one], settings=GatewaySettings(page=page))
        async with balancing(kind, plan) as balancer:
            for route in routes:
                path = re.sub(r"{.*?}", "x", route.path)
                method = "POST" if "POST" in (route.methods or ()) else "GET"
                await balancer.client.request(method, path)
                got_there = any(request.path == path for request in one.requests)
                assert got_there is (path not in HIDDEN), path
            assert (await balancer.client.get("/page/")).status_code == (200 if page else 404)


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/targets",
        "/v1/../metrics",
        "/v1/%2e%2e/metrics",
        "//metrics",
        "/page/../targets",
    ],
)
async def test_what_is_not_for_clients_is_not_found(kind: str, tmp_path: Path, path: str) -> None:
    async with fake_replica() as replica, gateway([replica], keys=["a-key"]) as running:
        plan = plan_for(tmp_path, [address(running)])
        async with balancing(kind, plan) as balancer:
            for open_path in ("/ready", "/health"):
                assert (await balancer.client.get(open_path)).status_code == 200
            host, _, port = plan.listen[0].partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            lines = (f"GET {path} HTTP/1.1", "Host: pomona", "Authorization: Bearer a-key")
            # Sent by hand: a client would tidy the path up.
            writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert head.split()[1] == b"404"
            assert json.loads(body)["error"]["code"] == "unknown_url"
            assert b"pomona_" not in body


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_that_is_too_large_is_refused(
    kind: str, tmp_path: Path, is_announced: bool
) -> None:
    """More than fits into sockets' buffers, so that the client is still sending."""
    settings = GatewaySettings(max_body_bytes=5_000_000)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(1500):
            yield b"x" * 10_000

    async with (
        fake_replica() as replica,
        gateway([replica], keys=["a-key"], max_body_bytes=settings.max_body_bytes) as running,
        balancing(kind, plan_for(tmp_path, [address(running)], settings=settings)) as balancer,
    ):
        key = {"Authorization": "Bearer a-key"}
        content = b"x" * 15_000_000 if is_announced else chunks()
        refused = await balancer.ask(content=content, headers=key, json=None)
        assert (refused.status_code, error_of(refused)["code"]) == (413, "body_too_large")
        assert refused.headers["x-request-id"]


async def test_a_refusal_reaches_who_is_still_sending(kind: str, tmp_path: Path) -> None:
    limits = ClientLimits(requests_per_second=1)
    async with (
        fake_replica() as replica,
        gateway([replica], keys=["a-key"]) as running,
        balancing(kind, plan_for(tmp_path, [address(running)], limits=limits)) as balancer,
    ):
        wrong = await balancer.ask(content=b"x" * 4_000_000)
        assert (wrong.status_code, error_of(wrong)["code"]) == (401, "invalid_api_key")
        async with asyncio.timeout(DEADLINE_S):
            # The balancer's own refusal, in the end.
            while (refused := await balancer.ask(content=b"x" * 100_000)).status_code != 429:
                assert refused.status_code == 401
        assert error_of(refused)["code"] == "rate_limit_exceeded"


async def test_a_large_body_passes(kind: str, tmp_path: Path) -> None:
    async with gateways(1) as [one], balancing(kind, plan_for(tmp_path, [one])) as balancer:
        body = b"x" * GatewaySettings().max_body_bytes
        assert (await balancer.ask(content=body)).status_code == 200
        assert one.requests[0].body == body
        # Prompts stay off the disk: nginx would warn here.
        assert "temporary file" not in balancer.log.read_text()


async def test_a_gateways_refusal_passes_unchanged(kind: str, tmp_path: Path) -> None:
    async with gateways(2) as both, balancing(kind, plan_for(tmp_path, both)) as balancer:
        told = {"error": {"message": "Full.", "type": "rate_limit_error", "param": None}}
        for one in both:
            one.answer = JSONResponse(told, 429, {"Retry-After": "7", "X-Request-Id": "req-1"})
        refused = await balancer.ask()
        assert (refused.status_code, refused.json()) == (429, told)
        assert refused.headers["retry-after"] == "7"
        assert refused.headers.get_list("x-request-id") == ["req-1"]
        assert sum(len(one.requests) for one in both) == 1


async def test_requests_at_once_are_limited_streams_included(kind: str, tmp_path: Path) -> None:
    async with gateways(1) as [one]:
        plan = plan_for(tmp_path, [one], limits=ClientLimits(requests_at_once=2))
        async with balancing(kind, plan) as balancer:
            one.streams = True
            for _ in range(2):
                one.events.put_nowait("event")
            ask = balancer.client.build_request("POST", PATH, json={})
            streams = [await balancer.client.send(ask, stream=True) for _ in range(2)]
            refused = await balancer.ask()
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert refused.headers["x-request-id"]
            assert error_of(refused)["type"] == "rate_limit_error"
            for _ in streams:
                one.events.put_nowait(None)
            sent = [await stream.aread() for stream in streams]
            assert b"".join(sent) == b"data: event\n\n" * 2
            one.streams = False
            await until_served(balancer.client)


async def until_served(client: httpx.AsyncClient) -> None:
    """The balancer may hear of the end of a stream after its client."""
    async with asyncio.timeout(DEADLINE_S):
        while (await client.post(PATH, json={})).status_code == 429:
            await asyncio.sleep(0.02)


async def test_requests_by_the_second_are_limited(kind: str, tmp_path: Path) -> None:
    async with gateways(1) as [one]:
        plan = plan_for(tmp_path, [one], limits=ClientLimits(requests_per_second=1))
        async with balancing(kind, plan) as balancer:
            async with asyncio.timeout(DEADLINE_S):
                while (refused := await balancer.ask()).status_code == 200:
                    pass
            assert len(one.requests) >= 10
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert error_of(refused)["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("streams", [True, False])
async def test_a_client_that_leaves_is_made_known(kind: str, tmp_path: Path, streams: bool) -> None:
    async with gateways(1) as [one], balancing(kind, plan_for(tmp_path, [one])) as balancer:
        one.streams = True
        if streams:
            one.events.put_nowait("first")
        asking = asyncio.create_task(read(balancer.client))
        await until(lambda: bool(one.requests) and one.events.empty())
        asking.cancel()
        await asyncio.wait_for(one.gone.wait(), DEADLINE_S)


async def read(client: httpx.AsyncClient) -> None:
    await client.post(PATH, json={})


async def test_without_any_gateway_the_answer_says_when_to_come_back(
    kind: str, tmp_path: Path
) -> None:
    plan = plan_for(tmp_path, [FakeGateway(), FakeGateway()])
    async with balancing(kind, plan) as balancer:
        refused = await balancer.ask()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["x-request-id"]
        assert error_of(refused)["code"] == "unavailable"
