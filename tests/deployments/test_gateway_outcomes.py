"""Each generation request is counted once, by what its client got."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from deployments.gateway import accepting as gateway_accepting
from deployments.gateway.access.api_keys import ApiKey, KeyRing
from deployments.gateway.access.rate_limits import RateLimits
from deployments.gateway.outcomes import OutcomesMiddleware
from deployments.http import sse
from deployments.http.errors import ApiError
from deployments.http.response_events import ResponseEventsMiddleware
from deployments.wire.failure import BelatedError, FailureKind
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    ScriptedReplica,
    fake_replica,
    gateway,
    outcomes,
    scripted,
)

PATH = "/v1/chat/completions"
STREAM = {**CHAT, "stream": True}
CONTENT = b'data: {"choices":[{"delta":{"content":"one"}}]}\n\n:~0:1\n\n'


def saying(words: str, **fields: Any) -> dict[str, Any]:
    return {**CHAT, "messages": [{"role": "user", "content": words}], **fields}


async def test_answers_mistakes_and_refusals() -> None:
    limits = RateLimits(requests_per_minute=3)
    keys = KeyRing([ApiKey.of("one", "one", limits=limits)])
    key = {"Authorization": "Bearer one"}
    async with fake_replica() as one, gateway([one], keys=keys) as running:
        for body in (CHAT, STREAM, {**CHAT, "model": "nope"}, CHAT):
            await running.client.post(PATH, json=body, headers=key)
        await running.client.post(PATH, json=CHAT)
        # Neither these nor their refusals are generation requests.
        for path in ("/v1/models", "/ready", "/nothing", PATH):
            await running.client.get(path)
        assert await outcomes(running) == {
            ("demo", "success"): 2,
            ("unknown", "client_error"): 2,
            ("unknown", "rate_limited"): 1,
        }


async def test_what_another_replica_makes_good_is_a_success() -> None:
    faults = {"gone": "unavailable", "boom": "step_error", "full": "queue_full"}
    async with (
        fake_replica(options={"faults": faults}) as ill,
        fake_replica(name="replica-2") as fine,
        gateway([ill, fine]) as running,
    ):
        for words in faults:
            for stream in (False, True):
                body = saying(f"{words} b c d", stream=stream)
                assert "error" not in (await running.client.post(PATH, json=body)).text
        assert await outcomes(running) == {("demo", "success"): 6}


@pytest.mark.parametrize(("status", "outcome"), [(429, "rate_limited"), (503, "server_error")])
async def test_a_request_that_all_replicas_refuse_counts_once(status: int, outcome: str) -> None:
    failure = FailureKind.FULL if status == 429 else FailureKind.SICK
    refusing = ScriptedReplica(status=status, failure=failure)
    async with (
        scripted(refusing) as one,
        scripted(refusing, name="replica-2") as other,
        gateway([one, other], resume_timeout_s=0.1) as running,
    ):
        await running.client.post(PATH, json=CHAT)
        assert await outcomes(running) == {("demo", outcome): 1}
    assert len(refusing.requests) >= 2


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, "client_error"),
        (429, "rate_limited"),
        (500, "server_error"),
    ],
)
async def test_a_stream_counts_as_the_error_that_it_ends_with(status: int, outcome: str) -> None:
    told = ApiError(status, "no")
    error = sse.error_event(told)
    async with (
        scripted(ScriptedReplica(chunks=[CONTENT, BelatedError.render(told)])) as one,
        gateway([one]) as running,
    ):
        response = await running.client.post(PATH, json=STREAM)
        assert (response.status_code, error in response.content) == (200, True)
        assert await outcomes(running) == {("demo", outcome): 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_no_replica_can_finish_is_an_error(stream: bool) -> None:
    body = {**CHAT, "stream": stream}
    lost = [ScriptedReplica(chunks=[CONTENT] if stream else [], then="vanish") for _ in range(2)]
    async with (
        scripted(lost[0]) as one,
        scripted(lost[1], name="replica-2") as other,
        gateway([one, other]) as running,
    ):
        await running.client.post(PATH, json=body)
        assert await outcomes(running) == {("demo", "server_error"): 1}


async def test_a_fault_of_the_gateway_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: object) -> None:
        raise RuntimeError("a fault of the gateway")

    monkeypatch.setattr(gateway_accepting, "whole_body", broken)
    async with gateway([]) as running:
        assert (await running.client.post(PATH, json=CHAT)).status_code == 500
        assert await outcomes(running) == {("unknown", "server_error"): 1}


@pytest.mark.parametrize("after_tokens", [0, 2])
async def test_a_client_that_leaves_is_nobodys_error(after_tokens: int) -> None:
    backend = FakeBackend()
    backend.hold(after_tokens=after_tokens)
    async with fake_replica(backend) as one, gateway([one]) as running:
        async with running.client.stream("POST", PATH, json=STREAM):
            await backend.held.reaches(1)
        await backend.live.reaches(0)
        assert await outcomes(running) == {("demo", "client_gone"): 1}


async def test_a_client_that_leaves_before_its_request_is_whole() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        url = httpx.URL(running.url)
        _, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b"{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(10):
            while not (found := await outcomes(running)):
                await asyncio.sleep(0)
    assert found == {("unknown", "client_gone"): 1}


async def test_a_request_that_the_server_cuts_off_failed_by_its_fault() -> None:
    """What outlasts a drain."""
    counted: list[tuple[str, str]] = []
    began = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        pass

    watched = ResponseEventsMiddleware(
        OutcomesMiddleware(app, on_end=lambda *ended: counted.append(ended))
    )
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
    request = asyncio.create_task(watched(scope, receive, send))
    await began.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert counted == [("", "server_error")]


async def test_the_gateways_part_of_the_first_tokens_time() -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([one]) as running:
        for body in (STREAM, STREAM, CHAT):
            await running.client.post(PATH, json=body)
        found = {
            sample.name: sample.value
            for family in running.metrics.registry.collect()
            for sample in family.samples
        }
    overhead, whole = (
        found[f"pomona_{name}_seconds_sum"] for name in ("gateway_overhead", "time_to_first_token")
    )
    assert found["pomona_gateway_overhead_seconds_count"] == 2
    assert 0 < overhead < whole
