"""Clients at work while something happens to the cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import aiohttp

from tests.support.cluster.hosts import API_KEY
from tests.support.cluster.requests import Request
from tests.support.cluster.streams import Stream, run_stream

CLIENT_TIMEOUT_S = 600


class Load:
    """A client for each request, which sends it again and again, until the block ends: as many
    streams at any time. The last ones run to their ends, unless the block fails."""

    def __init__(self, url_of: Callable[[int], str], requests: Sequence[Request]) -> None:
        """``url_of(number)`` is where each client goes."""
        self._url_of = url_of
        self._requests = requests
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="clients")
        self._stopping = False
        self._cut = threading.Event()
        self.streams: list[Stream] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping = True
        if error is not None:
            self._cut.set()
        self._thread.join()

    @property
    def num_running(self) -> int:
        """Streams that have begun, and have not ended."""
        return sum(stream.is_running for stream in self.streams[:])

    def all_began_again_after(self, moment: float) -> bool:
        """Whether every client has sent a request since, and has had tokens for it. Raises once a
        client has failed, which sends no more."""
        streams = self.streams[:]
        if failures := [one.failure for one in streams if one.failure]:
            raise RuntimeError(f"{len(failures)} clients failed, one with {failures[0]}")
        begun = {one.number for one in streams if one.begins_after(moment)}
        return len(begun) == len(self._requests)

    async def _run(self) -> None:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=CLIENT_TIMEOUT_S),
            headers={"Authorization": f"Bearer {API_KEY}"},
        ) as session:
            clients = asyncio.gather(
                *(self._client(session, *one) for one in enumerate(self._requests))
            )
            while not clients.done():
                if self._cut.is_set():
                    clients.cancel()
                await asyncio.wait([clients], timeout=0.1)
            if not clients.cancelled():
                clients.result()

    async def _client(self, session: aiohttp.ClientSession, number: int, request: Request) -> None:
        while True:
            stream = Stream(number, request)
            self.streams.append(stream)
            await run_stream(session, self._url_of(number), stream)
            # One that has failed once has told enough.
            if self._stopping or stream.failure:
                return
