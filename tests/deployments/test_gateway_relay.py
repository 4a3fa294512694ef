"""What goes to a replica and what comes back, byte for byte, and what happens when it does not."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack

import httpx
import pytest

from deployments.backend import BackendError, QueueFullError, StepError, UnavailableError
from deployments.fleet.directory import Replica
from deployments.http import sse
from deployments.http.errors import api_error_from, internal_error
from deployments.wire.failure import BelatedError, FailureKind
from tests.support.deployments.answers import closed_port, error_of
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    SECRET,
    Running,
    ScriptedReplica,
    failures,
    fake_replica,
    gateway,
    replica_at,
    scripted,
)

PATH = "/v1/chat/completions"
STREAM = {**CHAT, "stream": True}
EVENTS = [
    b": keep-alive\n\n",
    'data: {"a":"\u00e9\u4e16\U0001f34e"}\n\n'.encode(),
    b"data: {}\n\n",
    b"data: " + b"x" * 70_000 + b"\n\n",
    b"data: [DONE]\n\n",
]
CHECKPOINT = b":~0:17 1:4,5\n\n"
BEAT = EVENTS[0] + b":~\n\n"


async def raw_stream(running: Running, **kwargs: object) -> tuple[httpx.Response, bytes]:
    async with running.client.stream("POST", PATH, json=STREAM, **kwargs) as response:
        return response, b"".join([chunk async for chunk in response.aiter_raw()])


async def test_a_stream_arrives_byte_for_byte_however_it_is_cut() -> None:
    replica = ScriptedReplica()
    async with scripted(replica) as one, gateway([one]) as running:
        for size in (1, 2, 3, 7, 64, 4096, 10**6):
            # Cutting the long event into single bytes would only take time.
            events = EVENTS if size >= 64 else [EVENTS[0], EVENTS[1], EVENTS[4]]
            sent = b"".join(event + CHECKPOINT for event in events)
            replica.chunks = [sent[at : at + size] for at in range(0, len(sent), size)]
            response, got = await raw_stream(running)
            assert response.status_code == 200
            assert got == b"".join(events)


async def test_an_answer_that_is_no_stream_arrives_byte_for_byte() -> None:
    body = '{"text": "\u00e9"}\n'.encode()
    headers = [(b"content-type", b"application/json")]
    replica = ScriptedReplica(headers=headers, chunks=[body[:5], body[5:]])
    async with scripted(replica) as one, gateway([one]) as running:
        response = await running.client.post(PATH, json=CHAT)
    assert response.content == body
    assert response.headers["content-length"] == str(len(body))


async def test_headers_of_one_connection_stay_on_it() -> None:
    replica = ScriptedReplica(
        chunks=[EVENTS[-1] + CHECKPOINT],
        headers=[
            (b"Content-Type", b"text/event-stream"),
            (b"X-Pomona-Checkpoints", b"1"),
            (b"Connection", b"x-private"),
            (b"X-Private", b"1"),
            (b"Keep-Alive", b"timeout=5"),
            (b"X-Request-Id", b"the-replicas-own"),
            (b"X-Accel-Buffering", b"no"),
        ],
    )
    async with scripted(replica) as one, gateway([one], keys=["key"]) as running:
        response, _ = await raw_stream(
            running,
            headers={"Authorization": "Bearer key", "X-Request-Id": "mine", "Cookie": "a=b"},
        )
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers.get_list("x-request-id") == ["mine"]
    assert not {"x-private", "keep-alive", "x-pomona-checkpoints"} & set(response.headers)
    [(headers, body)] = replica.requests
    assert json.loads(body) == STREAM
    assert headers["authorization"] == f"Bearer {SECRET}"
    assert headers["x-request-id"] == "mine"
    assert "cookie" not in headers


async def test_a_dead_replica_is_passed_over() -> None:
    async with (
        fake_replica(name="replica-2") as alive,
        gateway([replica_at(closed_port()), alive]) as running,
    ):
        responses = [await running.client.post(PATH, json=CHAT) for _ in range(3)]
        assert [response.status_code for response in responses] == [200, 200, 200]
        assert all(one.load.tokens == 0 for one in running.table.serving("demo"))


async def test_without_a_living_replica_the_client_is_told_to_come_back() -> None:
    dead = [replica_at(closed_port(), name=name) for name in "abcd"]
    async with gateway(dead, resume_timeout_s=0.2) as running:
        response = await running.client.post(PATH, json=STREAM)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert error_of(response)["code"] == "unavailable"


@pytest.mark.parametrize("failure", [FailureKind.FULL, FailureKind.SICK])
async def test_a_refusal_goes_to_the_next_replica(failure: FailureKind) -> None:
    refusing = ScriptedReplica(status=503, chunks=[b"{}"], failure=failure)
    async with (
        scripted(refusing) as first,
        fake_replica(name="replica-2") as second,
        gateway([first, second]) as running,
    ):
        assert (await running.client.post(PATH, json=CHAT)).status_code == 200
    assert len(refusing.requests) == 1


async def test_a_refusal_by_all_is_passed_on_as_it_is() -> None:
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"7")]
    body = b'{"error": {"type": "full"}}'
    full = ScriptedReplica(429, headers, chunks=[body], failure=FailureKind.FULL)
    async with scripted(full) as one, gateway([one]) as running:
        response = await running.client.post(PATH, json=STREAM)
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert response.json() == {"error": {"type": "full"}}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([(429, b"9"), (429, b"4"), (429, b"7")], (429, "4")),
        # One that leaves says nothing of how soon the others have room.
        ([(429, b"9"), (503, b"1")], (429, "9")),
        ([(503, b"1"), (429, b"9")], (429, "9")),
    ],
)
async def test_of_several_refusals_the_client_gets_the_one_with_the_shortest_wait(
    answers: list[tuple[int, bytes]], expected: tuple[int, str]
) -> None:
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(
                scripted(
                    ScriptedReplica(
                        status,
                        [(b"retry-after", wait)],
                        [b"{}"],
                        FailureKind.FULL if status == 429 else FailureKind.SICK,
                    ),
                    name=str(number),
                )
            )
            for number, (status, wait) in enumerate(answers)
        ]
        running = await stack.enter_async_context(gateway(replicas))
        response = await running.client.post(PATH, json=STREAM)
    assert (response.status_code, response.headers["retry-after"]) == expected


async def test_a_full_replica_is_no_reason_for_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    full = ScriptedReplica(
        429, headers=[(b"retry-after", b"2")], chunks=[b"{}"], failure=FailureKind.FULL
    )
    async with scripted(full) as one, gateway([one]) as running:
        assert (await running.client.post(PATH, json=CHAT)).status_code == 429
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not warnings


async def test_a_replica_that_does_not_know_the_secret_is_no_fault_of_the_client() -> None:
    async with fake_replica() as one:
        stranger = Replica(**{**one.metadata(), "secret": "another"})
        async with gateway([stranger], resume_timeout_s=0.1) as running:
            response = await running.client.post(PATH, json=CHAT)
    assert response.status_code == 503


async def test_a_replica_lost_before_the_first_content_is_replaced_unnoticed() -> None:
    lost = ScriptedReplica(chunks=[BEAT, b"data: {half an eve"], then="vanish")
    async with (
        scripted(lost) as first,
        fake_replica(name="replica-2") as second,
        gateway([first, second]) as running,
    ):
        _, got = await raw_stream(running)
    assert got.startswith(EVENTS[0])
    assert got.endswith(b"data: [DONE]\n\n")
    assert b"half" not in got
    assert b"error" not in got


def belated(error: BackendError) -> bytes:
    return BelatedError.render(api_error_from(error))


UNAVAILABLE = belated(UnavailableError("draining"))
QUEUE_FULL = belated(QueueFullError("full", retry_after=1))
STEP_FAILED = belated(StepError("step"))


@pytest.mark.parametrize(
    "chunks",
    [
        [BEAT, UNAVAILABLE],
        [BEAT, BEAT + QUEUE_FULL],
        [BEAT, QUEUE_FULL[:20], QUEUE_FULL[20:]],
        [BEAT, STEP_FAILED],
        [UNAVAILABLE],
    ],
)
async def test_a_refusal_inside_a_stream_goes_to_the_next_replica(chunks: list[bytes]) -> None:
    refusing = ScriptedReplica(chunks=chunks)
    async with (
        scripted(refusing) as first,
        fake_replica(name="replica-2") as second,
        gateway([first, second]) as running,
    ):
        response, got = await raw_stream(running)
    assert response.status_code == 200
    assert b"error" not in got
    assert got.count(b"data: [DONE]\n\n") == 1
    assert len(refusing.requests) == 1


@pytest.mark.parametrize("others", [0, 1])
async def test_a_replica_that_stops_before_the_first_content(others: int) -> None:
    stopping = FakeBackend()
    stopping.hold()
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(fake_replica(stopping))]
        for number in range(others):
            one = fake_replica(name=f"replica-{number + 2}")
            replicas.append(await stack.enter_async_context(one))
        running = await stack.enter_async_context(gateway(replicas, resume_timeout_s=0.2))
        async with running.client.stream("POST", PATH, json=STREAM) as response:
            chunks = response.aiter_raw()
            got = await anext(chunks)
            assert got.startswith(b": prefill 0/3\n\n")
            await stopping.stop()
            got += b"".join([chunk async for chunk in chunks])
    last = got.removesuffix(b"\n\n").split(b"\n\n")[-1].removeprefix(b"data: ")
    if others:
        assert last == b"[DONE]"
        assert b"error" not in got
    else:
        assert error_code(last) == "unavailable"


async def test_a_head_is_passed_on_before_there_is_anything_else() -> None:
    async with (
        scripted(ScriptedReplica(then="hang")) as one,
        gateway([one]) as running,
        running.client.stream("POST", PATH, json=STREAM) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"


async def test_a_refusal_after_the_head_is_an_event() -> None:
    async with scripted(ScriptedReplica(chunks=[QUEUE_FULL])) as one, gateway([one]) as running:
        response, got = await raw_stream(running)
    assert response.status_code == 200
    assert error_code(got) == "queue_full"


@pytest.mark.parametrize("before", [[BEAT], [BEAT, EVENTS[1] + CHECKPOINT]])
async def test_an_error_of_the_request_itself_ends_the_stream(before: list[bytes]) -> None:
    other = ScriptedReplica()
    fault = sse.error_event(internal_error())
    async with (
        scripted(ScriptedReplica(chunks=[*before, BelatedError.render(internal_error())])) as first,
        scripted(other, name="replica-2") as second,
        gateway([first, second]) as running,
    ):
        _, got = await raw_stream(running)
    assert got == b"".join(EVENTS[: len(before)]) + fault
    assert other.requests == []


def error_code(body: bytes) -> str:
    code: str = json.loads(body.rpartition(b"data: ")[2])["error"]["code"]
    return code


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_takes_replicas_down_is_refused_after_two_alone(stream: bool) -> None:
    replicas = [ScriptedReplica(then="vanish") for _ in range(4)]
    for one in replicas:
        one.headers = one.headers if stream else []
    async with AsyncExitStack() as stack:
        found = [
            await stack.enter_async_context(scripted(one, name=f"replica-{number}"))
            for number, one in enumerate(replicas)
        ]
        running = await stack.enter_async_context(gateway(found))
        response = await running.client.post(PATH, json={**CHAT, "stream": stream})
        await running.client.get("/health")
        assert failures(running) == {("demo", "server_error"): 1}
    assert sum(len(one.requests) for one in replicas) == 5
    assert (response.status_code, error_code(response.content)) == (
        200 if stream else 502,
        "replica_lost",
    )
    if not stream:
        # The openai client obeys it, and would otherwise take down two more.
        assert response.headers["x-should-retry"] == "false"


async def test_a_replica_that_has_just_refused_is_not_asked_first_again() -> None:
    refusing = ScriptedReplica(status=503, chunks=[b"{}"], failure=FailureKind.SICK)
    backend = FakeBackend()
    backend.hold()
    async with (
        scripted(refusing) as first,
        fake_replica(backend, name="replica-2") as second,
        # On a busy machine a rest of a second may be over before the last request is sent.
        gateway([first, second], now=lambda: 0.0) as running,
    ):
        # Without a memory the one that refuses always has the fewest tokens outstanding.
        asking = [asyncio.create_task(running.client.post(PATH, json=CHAT)) for _ in range(3)]
        await backend.held.reaches(3)
        num_asked = len(refusing.requests)
        more = [asyncio.create_task(running.client.post(PATH, json=CHAT)) for _ in range(5)]
        await backend.held.reaches(8)
        assert len(refusing.requests) == num_asked
        backend.release()
        responses = await asyncio.gather(*asking, *more)
    assert [response.status_code for response in responses] == [200] * 8


@pytest.mark.parametrize("half", [b"data: {half an eve", EVENTS[2], EVENTS[2] + CHECKPOINT[:-1]])
async def test_a_stream_that_nobody_goes_on_with_ends_with_an_error_after_a_checkpoint(
    half: bytes,
) -> None:
    lost = ScriptedReplica(chunks=[EVENTS[1] + CHECKPOINT, half], then="vanish")
    cannot = ScriptedReplica(500, chunks=[b"{}"], failure=FailureKind.CANNOT_RESUME)
    async with (
        scripted(lost) as one,
        scripted(cannot, name="replica-2") as other,
        gateway([one, other]) as running,
    ):
        _, got = await raw_stream(running)
    events = [event for event in got.split(b"\n\n") if not event.startswith(b":")]
    assert events[0] == EVENTS[1].rstrip()
    assert json.loads(events[1].removeprefix(b"data: "))["error"]["code"] == "stream_broken"
    assert events[2:] == [b""]


async def test_a_refusal_after_keep_alives_is_told_inside_the_stream() -> None:
    drained = ScriptedReplica(chunks=[BEAT, UNAVAILABLE])
    body = b'{"error": {"message": "full",\n"code": "queue_full"}}'
    full = ScriptedReplica(status=429, chunks=[body], failure=FailureKind.FULL)
    async with (
        scripted(drained) as first,
        scripted(full, name="replica-2") as second,
        gateway([first, second]) as running,
    ):
        response, got = await raw_stream(running)
    assert response.status_code == 200
    event = got.replace(EVENTS[0], b"").removeprefix(b"data: ")
    assert json.loads(event)["error"]["code"] == "queue_full"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_silent_replica_counts_as_lost(stream: bool) -> None:
    silent = ScriptedReplica(chunks=[BEAT], then="hang")
    if not stream:
        silent.headers, silent.chunks = [(b"content-type", b"application/json")], [b" "]
    async with (
        scripted(silent) as one,
        fake_replica(name="replica-2") as other,
        gateway([one, other], keep_alive_interval_s=0.1, stall_timeout_s=0.2) as running,
    ):
        response = await running.client.post(PATH, json={**CHAT, "stream": stream})
        await asyncio.wait_for(silent.closed.wait(), 60)
    assert "one" in response.text
    assert "error" not in response.text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_has_a_time_limit(stream: bool) -> None:
    backend = FakeBackend()
    backend.hold()
    async with (
        fake_replica(backend) as one,
        gateway([one], request_timeout_s=0.2) as running,
    ):
        response = await running.client.post(PATH, json={**CHAT, "stream": stream})
        await asyncio.wait_for(backend.live.reaches(0), 60)
    if stream:
        assert b'"code":"timeout"' in response.content
    else:
        assert response.status_code == 504
        assert error_of(response)["code"] == "timeout"


@pytest.mark.parametrize("after_tokens", [0, 2])
async def test_a_client_that_leaves_frees_the_replica(after_tokens: int) -> None:
    backend = FakeBackend()
    backend.hold(after_tokens=after_tokens)
    async with (
        fake_replica(backend) as one,
        gateway([one], keep_alive_interval_s=60, stall_timeout_s=120) as running,
    ):
        async with running.client.stream("POST", PATH, json=STREAM) as response:
            await backend.held.reaches(1)
            assert response.status_code == 200
        await asyncio.wait_for(backend.live.reaches(0), 30)


async def test_a_client_that_leaves_before_any_answer_frees_the_replica() -> None:
    backend = FakeBackend()
    backend.hold()
    async with fake_replica(backend) as one, gateway([one]) as running:
        asking = asyncio.create_task(running.client.post(PATH, json=CHAT))
        await backend.held.reaches(1)
        asking.cancel()
        await asyncio.wait_for(backend.live.reaches(0), 60)


async def test_events_are_relayed_at_once() -> None:
    backend = FakeBackend()
    backend.hold(after_tokens=1)
    async with (
        fake_replica(backend) as one,
        gateway([one]) as running,
        running.client.stream("POST", PATH, json=STREAM) as response,
    ):
        seen = b""
        chunks = response.aiter_raw()
        # Only the first word can be here: the second waits at the gate.
        while b'"one"' not in seen:
            seen += await anext(chunks)
        assert b'" two"' not in seen
        backend.release()
        seen += b"".join([chunk async for chunk in chunks])
    assert seen.endswith(b"data: [DONE]\n\n")


async def test_load_is_spread_over_replicas_by_outstanding_tokens() -> None:
    backends = [FakeBackend() for _ in range(3)]
    async with AsyncExitStack() as stack:
        replicas = []
        for number, backend in enumerate(backends):
            backend.hold()
            one = fake_replica(backend, name=f"replica-{number}")
            replicas.append(await stack.enter_async_context(one))
        running = await stack.enter_async_context(gateway(replicas))
        asking = [asyncio.create_task(running.client.post(PATH, json=CHAT)) for _ in range(12)]
        for backend in backends:
            await backend.held.reaches(4)
        for backend in backends:
            backend.release()
        responses = await asyncio.gather(*asking)
    assert [response.status_code for response in responses] == [200] * 12
