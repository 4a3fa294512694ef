"""What one try at a request says about the replica, and about the request."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from starlette.types import Receive, Scope, Send

from deployments.fleet.directory import Replica
from deployments.gateway.replicas.capacity import BATCH
from deployments.gateway.replicas.state import ReplicaState
from deployments.http.server import HttpServer
from deployments.wire.failure import FailureKind
from tests.support.clock import Clock
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    Running,
    ScriptedReplica,
    fake_replica,
    gateway,
    replica_at,
    scripted,
)
from tests.support.deployments.replica_listener import HANGS_UP, PLAIN, in_turn, listening, says

PATH = "/v1/chat/completions"
DONE = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'


def half_open(running: Running, clock: Clock) -> ReplicaState:
    """The only replica's, of one that has rested."""
    (state,) = running.table.serving("demo")
    for _ in range(2):
        state.breaker.failed()
    clock.time += 1
    return state


@pytest.mark.parametrize("stream", [True, False])
async def test_the_head_of_a_long_answer_ends_the_probe(stream: bool) -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one:
        clock = Clock()
        async with gateway([one], now=clock) as running:
            state = half_open(running, clock)
            backend.hold(after_tokens=1)
            body = {**CHAT, "stream": stream}
            asking = asyncio.create_task(running.client.post(PATH, json=body))
            await backend.held.reaches(1)
            async with asyncio.timeout(10):
                while not state.breaker.admits:
                    await asyncio.sleep(0.001)
            assert not asking.done()
            backend.release()
            assert (await asking).status_code == 200


async def test_a_stream_that_runs_tells_how_fast_its_replica_is() -> None:
    backend, clock = FakeBackend(), Clock()
    body = {**CHAT, "stream": True}
    async with fake_replica(backend) as one, gateway([one], now=clock) as running:
        (state,) = running.table.serving("demo")
        backend.hold(after_tokens=1)
        async with running.client.stream("POST", PATH, json=body) as response:
            events = response.aiter_bytes()
            await anext(events)
            while not state.pace.waiting:
                await asyncio.sleep(0)
            clock.time += 13.6
            assert state.token_s == pytest.approx(13.6 / (1 + BATCH))
            backend.release()
            assert [event async for event in events]
        assert state.capacity.num_streams == 1
        assert not state.pace.waiting


async def test_a_full_replica_is_well() -> None:
    async with scripted(ScriptedReplica(429, chunks=[b"{}"], failure=FailureKind.FULL)) as one:
        clock = Clock()
        async with gateway([one], now=clock) as running:
            state = half_open(running, clock)
            assert (await running.client.post(PATH, json=CHAT)).status_code == 429
        state.breaker.failed()
        assert state.breaker.admits


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    """A host that was unplugged, behind a connection that is open: it takes bytes."""
    if scope["type"] != "http":
        return
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def unplugged(name: str) -> AsyncIterator[Replica]:
    server = HttpServer(silent, host="127.0.0.1", port=0)
    try:
        yield replica_at(await server.start(), name=name)
    finally:
        await server.stop()


@pytest.mark.parametrize("stream", [True, False])
async def test_silence_before_the_first_byte_does_not_count_against_a_request(stream: bool) -> None:
    settings = {"keep_alive_interval_s": 0.1, "stall_timeout_s": 0.2}
    async with (
        unplugged("a") as one,
        unplugged("b") as two,
        fake_replica(name="c") as three,
        gateway([one, two, three], **settings) as running,
    ):
        response = await running.client.post(PATH, json={**CHAT, "stream": stream})
    assert response.status_code == 200
    assert "error" not in response.text


async def test_a_kept_connection_that_was_closed_says_nothing_about_its_replica(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = in_turn(says(PLAIN), HANGS_UP, says(PLAIN))
    async with (
        listening(answers) as listener,
        gateway([replica_at(listener.url)]) as running,
    ):
        for _ in range(2):
            assert (await running.client.post(PATH, json=CHAT)).status_code == 200
    assert "replica-1 failed" not in caplog.text
    # A replica refuses an attempt that it has ended.
    attempts = [re.search(rb'"attempt":"(\w+)"', one) for one in listener.requests]
    assert len({found and found[1] for found in attempts}) == len(attempts) == 3


async def test_a_request_that_closes_connections_is_refused_after_two_alone() -> None:
    num_requests = 0

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_requests
        await reader.readuntil(b"\r\n\r\n")
        num_requests += 1
        writer.close()

    async with AsyncExitStack() as stack:
        replicas = []
        for name in "abcd":
            server = await stack.enter_async_context(await asyncio.start_server(die, "127.0.0.1"))
            port = server.sockets[0].getsockname()[1]
            replicas.append(replica_at(f"http://127.0.0.1:{port}", name=name))
        running = await stack.enter_async_context(gateway(replicas, max_attempts=4))
        response = await running.client.post(PATH, json=CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "replica_lost")
    # Three in a row may have a common cause; then it was alone.
    assert num_requests == 5


async def test_what_is_logged_but_unseen_does_not_go_to_another_revision() -> None:
    withheld = ScriptedReplica(chunks=[b": keep-alive\n\n:~0=0 0:17\n\n"], then="vanish")
    same, other = (ScriptedReplica(chunks=[DONE + b":~\n\n"]) for _ in range(2))
    async with AsyncExitStack() as stack:
        first, second, third = [
            await stack.enter_async_context(scripted(one, name=name))
            for name, one in (("a", withheld), ("b", same), ("c", other))
        ]
        running = await stack.enter_async_context(gateway([]))
        for found in (second, replace(third, revision="another")):
            running.directory.replace(
                [replace(first, replica_id=f"a-before-{found.replica_id}"), found]
            )
            response = await running.client.post(PATH, json={**CHAT, "stream": True})
            assert response.text.endswith(DONE.decode())
    for replica, log in ((same, b"0=0 0:17 "), (other, b"")):
        [(headers, body)] = replica.requests
        assert body.endswith(b"}" + log)
        assert json.loads(headers["x-pomona-envelope"])["log_bytes"] == len(log)


async def test_a_stream_ends_when_it_is_done_even_if_its_connection_does_not() -> None:
    open_ended = ScriptedReplica(chunks=[DONE + b":~\n\n"], then="hang")
    async with scripted(open_ended) as one, gateway([one]) as running:
        body = {**CHAT, "stream": True}
        response = await asyncio.wait_for(running.client.post(PATH, json=body), 60)
        await asyncio.wait_for(open_ended.closed.wait(), 60)
    assert response.content == DONE


async def test_the_deadline_does_not_spoil_a_whole_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    # The replica sends all events, but doesn't end its response before the deadline.
    monkeypatch.setattr("deployments.gateway.relay.attempt.CLOSES_WITHIN_S", 1.5)
    replica = ScriptedReplica(chunks=[DONE + b":~0:1\n\n"], then="hang")
    async with scripted(replica) as one, gateway([one], request_timeout_s=1) as running:
        response = await running.client.post(PATH, json={**CHAT, "stream": True})
    assert response.content == DONE
