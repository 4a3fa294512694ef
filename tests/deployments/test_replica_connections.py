"""Connections of a gateway, against replicas that do what they like to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import closing
from functools import partial
from typing import Any
from unittest.mock import Mock, patch

import pytest
import uvloop

from deployments.gateway.relay.connection import MAX_UNREAD_BYTES, RECEIVE_BUFFER_BYTES
from deployments.gateway.relay.connections import (
    ConnectionLostError,
    ReplicaConnections,
    UnreachableError,
)
from tests.support.deployments.replica_listener import (
    BODY,
    CHUNKED,
    CUT_OFF,
    HANGS_UP,
    PLAIN,
    connected,
    in_turn,
    listening,
    reaches,
    says,
)


def post(connections: ReplicaConnections, url: str, **options: Any) -> Any:
    return connections.request(
        "POST",
        url,
        "/v1/completions",
        **{"connect_timeout_s": 10.0, "stall_timeout_s": 10.0, "body": b"{}"} | options,
    )


async def ask(connections: ReplicaConnections, url: str, **options: Any) -> bytes:
    async with post(connections, url, **options) as response:
        assert response.status == 200
        return await response.read()


@pytest.mark.parametrize("whole", [PLAIN, CHUNKED])
async def test_a_connection_that_was_read_to_the_end_is_used_again(whole: bytes) -> None:
    async with listening(says(whole[:30], whole[30:])) as listener:
        with closing(ReplicaConnections(keep_idle_s=60)) as connections:
            for _ in range(3):
                assert await ask(connections, listener.url) == BODY
                assert (connections.num_open, connections.num_idle) == (1, 1)
            both = ask(connections, listener.url), ask(connections, listener.url)
            assert await asyncio.gather(*both) == [BODY, BODY]
            assert (connections.num_open, connections.num_idle) == (2, 2)
        await reaches(lambda: connections.num_open, 0)
        assert connections.num_idle == 0
        assert len(listener.writers) == 2


async def test_what_is_sent() -> None:
    async with connected(says(PLAIN)) as (listener, connections):
        await ask(connections, listener.url, headers={"A": "b", "C": "\u00e9"})
        reading = connections.request(
            "GET", listener.url, "/ready", connect_timeout_s=10, stall_timeout_s=10
        )
        async with reading as response:
            await response.read()
    host = listener.url.removeprefix("http://").encode()
    assert listener.requests == [
        b"POST /v1/completions HTTP/1.1\r\nHost: %b\r\nA: b\r\nC: \xe9\r\n"
        b"Content-Length: 2\r\n\r\n{}" % host,
        b"GET /ready HTTP/1.1\r\nHost: %b\r\n\r\n" % host,
    ]


@pytest.mark.parametrize("value", ["a\r\nX-Pomona-Envelope: {}", "a\nb", "a\rb"])
async def test_a_value_can_not_become_another_header(value: str) -> None:
    async with connected(says(PLAIN)) as (listener, connections):
        with pytest.raises(ValueError, match="line break"):
            await ask(connections, listener.url, headers={"A": value})
        assert connections.num_open == 0


@pytest.mark.parametrize("end", ["left", "failed", "cancelled"])
async def test_who_does_not_read_to_the_end_closes_the_connection(end: str) -> None:
    async with connected(says(CUT_OFF)) as (listener, connections):

        async def read_some() -> None:
            async with post(connections, listener.url) as response:
                assert await response.readany() == b"data: 1\n\n"
                if end == "failed":
                    raise KeyError(end)
                if end == "cancelled":
                    read.set()
                    await response.readany()

        read = asyncio.Event()
        reading = asyncio.create_task(read_some())
        if end == "cancelled":
            await read.wait()
            reading.cancel()
        [result] = await asyncio.gather(reading, return_exceptions=True)
        assert isinstance(
            result, {"failed": KeyError, "cancelled": BaseException}.get(end, type(None))
        )
        # The replica has noticed, and may stop.
        await reaches(lambda: listener.num_ended, 1)
        await reaches(lambda: connections.num_open, 0)
        assert connections.num_idle == 0


async def test_a_connection_that_the_replica_does_not_keep_is_not_used_again() -> None:
    closing = PLAIN.replace(b"X-Mark: Yes", b"Connection: close")
    async with connected(says(closing)) as (listener, connections):
        assert await ask(connections, listener.url) == BODY
        assert connections.num_idle == 0
        assert await ask(connections, listener.url) == BODY
        assert len(listener.writers) == 2


async def test_an_idle_connection_that_ends_is_forgotten() -> None:
    async with connected(says(PLAIN)) as (listener, connections):
        await ask(connections, listener.url)
        listener.writers[0].close()
        await reaches(lambda: connections.num_open, 0)
        assert connections.num_idle == 0
        assert await ask(connections, listener.url) == BODY


async def test_an_idle_connection_is_kept_for_a_while() -> None:
    async with connected(says(PLAIN), keep_idle_s=0.01) as (listener, connections):
        await ask(connections, listener.url)
        await reaches(lambda: connections.num_open, 0)
        assert connections.num_idle == 0
        await reaches(lambda: listener.num_ended, 1)


async def test_what_nobody_asked_for_is_no_answer_to_the_next_request() -> None:
    async with connected(says(PLAIN)) as (listener, connections):
        await ask(connections, listener.url)
        listener.writers[0].write(CHUNKED)
        await reaches(lambda: connections.num_open, 0)
        listener.answer = says(PLAIN + CHUNKED)
        assert await ask(connections, listener.url) == BODY
        assert connections.num_idle == 0
        listener.answer = says(PLAIN)
        assert await ask(connections, listener.url) == BODY
        assert len(listener.writers) == 3


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200", CUT_OFF, CHUNKED[:-5]])
async def test_a_connection_that_is_lost_tells_what_came_before(sent: bytes) -> None:
    async with connected(says(sent, then_closes=True)) as (listener, connections):
        got = b""

        async def read() -> None:
            nonlocal got
            async with post(connections, listener.url) as response:
                while True:
                    got += await response.readany()

        with pytest.raises(ConnectionLostError, match="closed"):
            await read()
        assert got == b"".join(event for event in (b"data: 1\n\n", b"data: 2\n\n") if event in sent)
        assert (connections.num_open, connections.num_idle) == (0, 0)


async def test_a_kept_connection_that_breaks_without_an_answer_is_replaced_once() -> None:
    answers = in_turn(says(PLAIN), HANGS_UP, says(PLAIN), HANGS_UP, HANGS_UP)
    async with connected(answers) as (listener, connections):
        headers = {"A": "1", "B": "2"}
        assert await ask(connections, listener.url) == BODY
        again = ask(connections, listener.url, headers=headers, renew=lambda: {"B": "3"})
        assert await again == BODY
        assert b"A: 1\r\nB: 2\r\n" in listener.requests[1]
        assert b"A: 1\r\nB: 3\r\n" in listener.requests[2]
        with pytest.raises(ConnectionLostError, match="closed"):
            await ask(connections, listener.url)
        assert (len(listener.requests), len(listener.writers)) == (5, 3)
        assert (connections.num_open, connections.num_idle) == (0, 0)


async def test_a_kept_connection_that_breaks_in_an_answer_is_lost() -> None:
    answers = in_turn(says(PLAIN), says(b"HTTP/1.1 200", then_closes=True))
    async with connected(answers) as (listener, connections):
        await ask(connections, listener.url)
        with pytest.raises(ConnectionLostError, match="closed"):
            await ask(connections, listener.url)
        assert len(listener.requests) == 2


async def test_a_replica_that_is_gone_after_a_kept_connection_broke_had_the_request() -> None:
    async with connected(says(PLAIN)) as (listener, connections):
        await ask(connections, listener.url)
        listener.answer = HANGS_UP
        gone = UnreachableError("refused")
        with (
            patch.object(connections, "_connect", side_effect=gone),
            pytest.raises(ConnectionLostError, match="closed"),
        ):
            await ask(connections, listener.url)
        assert len(listener.requests) == 2


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        CHUNKED.replace(b"9\r\ndata: 2", b"x\r\ndata: 2"),
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + PLAIN,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
    ],
)
async def test_what_is_no_http_is_a_lost_connection(sent: bytes) -> None:
    async with connected(says(sent)) as (listener, connections):
        with pytest.raises(ConnectionLostError, match="not valid HTTP"):
            await ask(connections, listener.url)
        await reaches(lambda: connections.num_open, 0)
        assert connections.num_idle == 0


async def test_a_replica_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with closing(ReplicaConnections(keep_idle_s=60)) as connections:
        with pytest.raises(UnreachableError):
            await ask(connections, f"http://127.0.0.1:{port}")
        assert connections.num_open == 0


async def test_a_host_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silence(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", silence)
    with closing(ReplicaConnections(keep_idle_s=60)) as connections:
        with pytest.raises(TimeoutError, match=r"no connection within 0\.01 s"):
            await ask(connections, "http://10.0.0.1:1", connect_timeout_s=0.01)
        assert connections.num_open == 0


@pytest.mark.parametrize("sent", [b"", CUT_OFF])
async def test_a_replica_that_falls_silent(sent: bytes) -> None:
    async with connected(says(sent)) as (listener, connections):
        with pytest.raises(TimeoutError, match="silent"):
            await ask(connections, listener.url, stall_timeout_s=0.05)
        await reaches(lambda: listener.num_ended, 1)
        await reaches(lambda: connections.num_open, 0)


async def test_a_connection_whose_options_can_not_be_set_works() -> None:
    refused = Mock(side_effect=OSError("as macOS does for a peer that has hung up"))
    with patch("deployments.gateway.relay.connection._notice_a_dead_peer", refused):
        async with connected(says(PLAIN)) as (listener, connections):
            assert await ask(connections, listener.url) == BODY
    refused.assert_called_once()


async def test_a_long_answer_waits_for_its_reader() -> None:
    long = b"x" * (16 * 1024 * 1024)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(long)
    async with connected(says(head, long)) as (listener, connections):
        async with post(connections, listener.url) as response:
            async with asyncio.timeout(10):
                while not response.is_paused:
                    await asyncio.sleep(0.001)
            first = await response.readany()
            assert len(first) <= 2 * MAX_UNREAD_BYTES
            assert first + await response.read() == long
        assert connections.num_idle == 1


async def test_what_a_replica_sends_ahead_of_its_reader_stays_little() -> None:
    """Whatever was sent, and read, before: a socket that is left to itself grows."""
    num_taken = num_read = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal num_taken
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 40))
        while True:
            writer.write(bytes(1 << 14))
            await writer.drain()
            num_taken += 1 << 14

    async with (
        connected(endless) as (listener, connections),
        post(connections, listener.url) as response,
    ):
        while num_read < 32 * 1024 * 1024:
            num_read += len(await response.readany())
        await reaches(lambda: response.is_paused, True)
        before = -1
        while num_taken > before:
            before = num_taken
            await asyncio.sleep(0.05)
        assert num_taken - num_read < 4 * RECEIVE_BUFFER_BYTES


async def test_closing_cuts_what_is_under_way() -> None:
    async with listening(says(CUT_OFF)) as listener:
        connections = ReplicaConnections(keep_idle_s=60)
        async with post(connections, listener.url) as response:
            await response.readany()
            connections.close()
            with pytest.raises(ConnectionLostError):
                await response.readany()
        await reaches(lambda: connections.num_open, 0)


@pytest.mark.parametrize(
    "test",
    [
        partial(test_a_connection_that_was_read_to_the_end_is_used_again, CHUNKED),
        partial(test_who_does_not_read_to_the_end_closes_the_connection, "left"),
        partial(test_who_does_not_read_to_the_end_closes_the_connection, "cancelled"),
        partial(test_a_connection_that_is_lost_tells_what_came_before, CUT_OFF),
        partial(test_a_replica_that_falls_silent, CUT_OFF),
        test_an_idle_connection_that_ends_is_forgotten,
        test_an_idle_connection_is_kept_for_a_while,
        test_what_nobody_asked_for_is_no_answer_to_the_next_request,
        test_a_replica_that_is_not_there,
        test_a_connection_whose_options_can_not_be_set_works,
        test_a_long_answer_waits_for_its_reader,
        test_closing_cuts_what_is_under_way,
    ],
)
def test_on_the_event_loop_of_rays_workers(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(test())
