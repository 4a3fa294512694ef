"""A gateway and its replica as real servers, and what mutated requests leave of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from unittest.mock import patch

import httpx
import psutil
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from deployments.fleet.directory import Replica
from deployments.gateway.relay.connection import ReplicaConnection
from deployments.gateway.relay.request import RelayedRequest
from deployments.gateway.responses.memory import MemoryStore
from deployments.http import server
from deployments.http.bounded_protocol import BoundedProtocol, ClientTimeouts
from deployments.replica.response import GenerationResponse
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.fuzz.mutations import Input, Manner
from tests.support.deployments.fuzz.recorded import LAST_EVENT_ID, Message, recorded
from tests.support.deployments.gateway_harness import (
    Running,
    counted_outcomes,
    fake_replica,
    gateway,
)
from tests.support.deployments.resumable_streams import RESUMABLE, events_of
from tests.support.new_objects import new_objects_alone

HANG_S = 60.0
HANGS = "hangs"
TIMEOUTS = ClientTimeouts(receive_s=0.2, send_s=10.0)
"""What is cut short is to be waited for a moment only."""
IDLE_S = 0.2
LAST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
"""Has a server that still listens hang up at once."""
STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
FAULTS = (
    b'"type":"server_error"',
    b'"type":"service_unavailable"',
    b'"type":"api_error"',
    b'"type":"overloaded_error"',
    b"Traceback",
)
HELD = (
    BoundedProtocol,
    RequestResponseCycle,
    RelayedRequest,
    ReplicaConnection,
    GenerationResponse,
)


class Faults(logging.Handler):
    """Errors and exceptions that a server has logged."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.seen.append(self.format(record))

    def take(self) -> list[str]:
        taken, self.seen = self.seen, []
        return taken


@dataclass
class Target:
    running: Running
    backend: FakeBackend
    last_event_id: bytes
    logged: Faults = field(default_factory=Faults)
    _num_counted: float = 0.0

    async def send(self, one: Input, patience_s: float = HANG_S) -> str | None:
        """What is wrong with what came back, if anything."""
        try:
            async with asyncio.timeout(patience_s):
                received = await self.exchange(one.raw, one.manner, Random(one.number))
        except TimeoutError:
            return HANGS
        told = [status for status in STATUS.findall(received) if status >= b"500"]
        told += [fault for fault in FAULTS if fault in received]
        return f"is answered with {told[0].decode()}: {received[-500:]!r}" if told else None

    async def exchange(self, raw: bytes, manner: Manner, dice: Random) -> bytes:
        """All that comes back."""
        host, _, port = self.running.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        raw = raw.replace(LAST_EVENT_ID, self.last_event_id)
        try:
            with suppress(ConnectionError):
                if manner is Manner.LEAVES:
                    writer.write(raw)
                    return await reader.read(dice.choice((0, 0, 1, 200, 4000)))
                for piece in _pieces(dice, raw + LAST, manner):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if manner is Manner.ENDS:
                    writer.write_eof()
            return await _read(reader)
        finally:
            writer.transport.abort()

    def faults(self) -> list[str]:
        """That the servers know of, since they were asked last."""
        counted = counted_outcomes(self.running)
        num_counted = sum(num for (_, one), num in counted.items() if one == "server_error")
        found = self.logged.take()
        if num_counted > self._num_counted:
            found.append("a server error was counted")
        self._num_counted = num_counted
        return found

    async def settled(self) -> None:
        """Every request has ended. Raises ``TimeoutError``, or ``AssertionError``."""
        async with asyncio.timeout(HANG_S):
            await self.backend.live.reaches(0)
        self.running.table.check_integrity()


@asynccontextmanager
async def target() -> AsyncIterator[Target]:
    """Raises ``AssertionError`` at the end if something is left of it."""
    # From its first server on, uvloop has a descriptor in reserve.
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0):
        pass
    with new_objects_alone():
        async with _watched_target() as one:
            yield one


@asynccontextmanager
async def _watched_target() -> AsyncIterator[Target]:
    before = _open()
    backend = FakeBackend()
    async with (
        # A short context bounds what a request can ask for.
        fake_replica(backend, max_model_len=48) as one,
        gateway([one]) as patient,
        _hasty_gateway(one) as running,
    ):
        made = Target(running, backend, await _last_event_id(patient.client))
        with _listening(made.logged):
            yield made
            await made.settled()
            assert (found := made.faults()) == [], found
    # What has ended is only seen to have in a later turn of the loop.
    give_up_at = time.monotonic() + HANG_S
    while (left_open := _open().beyond(before)) and time.monotonic() < give_up_at:
        await asyncio.sleep(0.01)
    assert not left_open, left_open
    while (left := _left()) and time.monotonic() < give_up_at:
        await asyncio.sleep(0.01)
    assert not left, f"{len(left)} objects are left: {sorted(set(left))}"


@asynccontextmanager
async def _hasty_gateway(replica: Replica) -> AsyncIterator[Running]:
    """Waits for nobody for long."""
    store = MemoryStore(max_bytes=1 << 20, max_bytes_per_key=1 << 20, max_age_s=3600)
    with patch.object(server, "KEEP_ALIVE_S", IDLE_S):
        async with gateway([replica], timeouts=TIMEOUTS, responses=store) as running:
            yield running
    store.check_integrity()


async def _last_event_id(client: httpx.AsyncClient) -> bytes:
    """Only the same request may go on after it."""
    body = Message.parse(recorded()["resume"]).body
    headers = {**RESUMABLE, "Content-Type": "application/json"}
    response = await client.post("/v1/chat/completions", content=body, headers=headers)
    [*_, last, _] = events_of(response.text)
    return last.id.encode()


@dataclass(frozen=True)
class _Open:
    num_descriptors: int
    tasks: set[str]

    def beyond(self, before: _Open) -> str:
        """What there is more than ``before``; what was open then may have closed since."""
        num_more = self.num_descriptors - before.num_descriptors
        tasks = self.tasks - before.tasks
        return f"{num_more} descriptors, tasks {tasks}" if num_more > 0 or tasks else ""


def _open() -> _Open:
    tasks = {task.get_name() for task in asyncio.all_tasks()}
    return _Open(psutil.Process().num_fds(), tasks)


def _left() -> list[str]:
    """What is held, and not by a cycle of references alone."""
    gc.collect()
    return [type(one).__name__ for one in gc.get_objects() if isinstance(one, HELD)]


@contextmanager
def _listening(handler: Faults) -> Iterator[None]:
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Until the server hangs up, in whatever way."""
    received = b""
    with suppress(ConnectionError):
        while part := await reader.read(1 << 16):
            received += part
    return received


def _pieces(dice: Random, raw: bytes, manner: Manner) -> Sequence[bytes]:
    if manner is not Manner.IN_PIECES:
        return [raw]
    cuts = sorted(dice.randrange(len(raw)) for _ in range(4))
    return [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
