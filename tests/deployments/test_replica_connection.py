"""One connection of a gateway to a replica: parsing what comes, and knowing when nothing does."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.relay.connection import (
    MAX_UNREAD_BYTES,
    ConnectionLostError,
    ReplicaConnection,
    ReplicaResponse,
)
from tests.support.deployments.replica_listener import BODY, CHUNKED, CUT_OFF, PLAIN


class FakeTransport(asyncio.Transport):
    """Of which the other end takes bytes when the test says so."""

    def __init__(self) -> None:
        super().__init__({"socket": Mock()})
        self.num_unsent_bytes = 0
        self.is_reading_now = True

    def write(self, data: Any) -> None:
        self.num_unsent_bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return self.num_unsent_bytes

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True

    def abort(self) -> None:
        pass


@dataclass
class FakeTimer:
    at: float
    then: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, then: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self.now + seconds, then)
        self._timers.append(timer)
        return timer

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self._timers if timer.at <= self.now]
        self._timers = [timer for timer in self._timers if timer.at > self.now]
        for timer in due:
            if not timer.is_cancelled:
                timer.then()


def on_fakes(monkeypatch: pytest.MonkeyPatch) -> tuple[ReplicaConnection, FakeTransport, FakeLoop]:
    connection, transport, loop = ReplicaConnection(lambda _: None), FakeTransport(), FakeLoop()
    monkeypatch.setattr(connection, "_loop", loop)
    connection.connection_made(transport)
    return connection, transport, loop


@given(st.sampled_from([PLAIN, CHUNKED]), st.sets(st.integers(1, len(CHUNKED) - 1), max_size=9))
def test_a_response_is_the_same_however_it_is_cut(whole: bytes, cuts: set[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]

    async def run() -> tuple[ReplicaResponse, bytes]:
        response = ReplicaResponse(FakeTransport())
        reading = asyncio.create_task(response.read())
        for start, end in pairwise(edges):
            assert not response.is_complete
            response.feed(whole[start:end])
            await asyncio.sleep(0)
        return response, await reading

    response, body = asyncio.run(run())
    assert (response.status, body) == (200, BODY)
    assert response.header("x-mark") == response.header("X-Mark") == b"Yes"
    assert response.header("X-Other") is None
    assert response.is_complete
    assert not response.closes_after


async def test_only_silence_is_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, transport, loop = on_fakes(monkeypatch)
    response = connection.send(b"x" * 100, 10)
    # Slowly, but it takes the request.
    for _ in range(5):
        loop.pass_by(9)
        transport.num_unsent_bytes -= 20
    loop.pass_by(9)
    for byte in CUT_OFF:
        connection.data_received(bytes([byte]))
        loop.pass_by(9.5)
    assert await response.readany() == b"data: 1\n\n"
    loop.pass_by(0.4)
    reading = asyncio.create_task(response.readany())
    await asyncio.sleep(0)
    assert not reading.done()
    loop.pass_by(0.2)
    with pytest.raises(TimeoutError, match=r"silent for 10\.1 s"):
        await reading
    assert not connection.finish(60)


async def test_a_replica_that_takes_nothing_of_a_request_stalls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, _, loop = on_fakes(monkeypatch)
    response = connection.send(b"x" * 100, 10)
    loop.pass_by(10)
    with pytest.raises(TimeoutError, match="silent"):
        await response.read_head()


async def test_a_replica_that_has_to_wait_does_not_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, transport, loop = on_fakes(monkeypatch)
    response = connection.send(b"", 10)
    connection.data_received(CUT_OFF.replace(b"99", b"9999999"))
    connection.data_received(b"x" * MAX_UNREAD_BYTES)
    assert not transport.is_reading_now
    for _ in range(5):
        loop.pass_by(100)
    assert len(await response.readany()) == 9 + MAX_UNREAD_BYTES
    assert transport.is_reading_now
    loop.pass_by(9)
    reading = asyncio.create_task(response.readany())
    await asyncio.sleep(0)
    assert not reading.done()
    loop.pass_by(1)
    loop.pass_by(10)
    with pytest.raises(TimeoutError, match="silent"):
        await reading


async def test_a_replica_that_had_to_wait_has_its_time_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, transport, loop = on_fakes(monkeypatch)
    response = connection.send(b"", 10)
    connection.data_received(CUT_OFF.replace(b"99", b"9999999") + MAX_UNREAD_BYTES * b"x")
    loop.pass_by(10)
    loop.pass_by(9)
    await response.readany()
    assert transport.is_reading_now
    loop.pass_by(1)
    connection.data_received(b"x")
    assert await response.readany() == b"x"


async def test_after_an_early_answer_a_connection_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, transport, _ = on_fakes(monkeypatch)
    response = connection.send(b"x" * 100, 10)
    connection.data_received(PLAIN)
    assert await response.read() == BODY
    assert transport.num_unsent_bytes
    assert not connection.finish(60)


@pytest.mark.parametrize("end", ["whole", "left", "lost"])
async def test_a_response_is_freed_at_once(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    connection, transport, _ = on_fakes(monkeypatch)
    response = connection.send(b"", 10)
    transport.num_unsent_bytes = 0
    connection.data_received(PLAIN if end == "whole" else CUT_OFF)
    await response.readany()
    if end == "lost":
        connection.connection_lost(None)
        with pytest.raises(ConnectionLostError):
            await response.readany()
    freed = weakref.ref(response)
    gc.disable()
    try:
        assert connection.finish(60) == (end == "whole")
        del response
        assert freed() is None
    finally:
        gc.enable()
