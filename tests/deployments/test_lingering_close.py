"""Closing a connection on which the peer still sends."""

from __future__ import annotations

import asyncio
import errno
from typing import cast

import pytest

from deployments.http import lingering_close
from deployments.http.lingering_close import LINGER_BYTES, LingeringTransport


class Recorded:
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.closed = asyncio.Event()

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.calls.append("close")
        self.closed.set()

    def abort(self) -> None:
        self.calls.append("abort")
        self.closed.set()

    def write(self, data: bytes) -> None:
        self.calls.append(f"write {data.decode()}")

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def pause_reading(self) -> None:
        self.calls.append("pause_reading")

    def resume_reading(self) -> None:
        self.calls.append("resume_reading")


def lingering(below: Recorded, *, is_peer_sending: bool) -> LingeringTransport:
    return LingeringTransport(
        cast(asyncio.Transport, below), is_peer_sending=lambda: is_peer_sending
    )


async def test_without_more_to_come_a_connection_closes_at_once() -> None:
    below = Recorded()
    transport = lingering(below, is_peer_sending=False)
    transport.close()
    assert below.calls == ["close"]
    assert (transport.is_closing(), transport.is_lingering) == (True, False)


async def test_a_peer_that_sends_has_some_time_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering_close, "LINGER_S", 0.0)
    below = Recorded()
    transport = lingering(below, is_peer_sending=True)
    transport.write(b"no")
    transport.close()
    transport.close()
    transport.write(b"too late")
    assert (transport.is_closing(), transport.is_lingering) == (True, True)
    assert below.calls == ["write no", "write_eof", "resume_reading"]
    await below.closed.wait()


async def test_a_peer_that_has_hung_up_is_not_waited_for() -> None:
    below = Recorded()

    def not_connected() -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    below.write_eof = not_connected  # type: ignore[method-assign]
    transport = lingering(below, is_peer_sending=True)
    transport.close()
    assert below.calls == ["abort"]
    transport.closed()


async def test_no_more_than_a_bound_is_taken() -> None:
    below = Recorded()
    transport = lingering(below, is_peer_sending=True)
    transport.close()
    transport.discard(bytes(LINGER_BYTES))
    assert "pause_reading" not in below.calls
    transport.discard(b"a")
    assert below.calls[-1] == "pause_reading"
    transport.closed()
