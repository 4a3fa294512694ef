"""The engine's process: a backend, and who asks it over the channel."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import faulthandler
import gc
import logging
import logging.handlers
import os
import signal
import socket
import sys
import traceback
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import uvloop

from deployments.backend.apart.channel import Channel
from deployments.backend.apart.messages import (
    REPORT_EVERY,
    Ask,
    Ended,
    Failure,
    FromEngine,
    Item,
    Leave,
    Logged,
    Made,
    Stats,
    Stream,
    Taken,
    ToEngine,
)
from deployments.backend.cores import give_way
from deployments.backend.errors import BackendError, StepError
from deployments.backend.protocol import Backend, create_backend

logger = logging.getLogger(__name__)

STATS_EVERY_S = 0.1
"""And whenever a request begins, gets its first token, or has ended."""
BEGINNING = 2
"""Items: that it was let in, and a token, unless its prompt takes several steps."""
MOST_UNREAD_BYTES = 1 << 20
"""With so much unsent the other side is behind, and more numbers or notes would add to it."""
LAST_WORDS_S = 1.0
"""For streams to end once the backend has stopped."""


class EngineServer:
    def __init__(self, backend: Backend, channel: Channel) -> None:
        self._backend = backend
        self._channel = channel
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._taken: dict[int, asyncio.Semaphore] = {}
        """Of each stream, the items that may count as read."""
        self._streams: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._has_started = self._has_stopped = False
        self._sent_stats: object = None

    async def run(self) -> None:
        """Until the other side is gone. Raises whatever should not have happened."""
        taking = asyncio.create_task(self._take_messages())
        telling = asyncio.create_task(self._tell_stats())
        done, _ = await asyncio.wait(
            (taking, telling, self._failure), return_when=asyncio.FIRST_COMPLETED
        )
        for one in done:
            one.result()

    async def _take_messages(self) -> None:
        async for messages in self._channel.received():
            for message in messages:
                self._take(message)

    def _take(self, message: ToEngine) -> None:
        match message:
            case Taken(number, num_items):
                if (taken := self._taken.get(number)) is not None:
                    for _ in range(num_items):
                        taken.release()
            case Ask(number):
                self._start(number, self._answer(message))
            case Stream(number):
                task = self._start(number, self._run(message))
                self._streams.add(task)
                task.add_done_callback(self._streams.discard)
            case Leave(number):
                if (left := self._tasks.get(number)) is not None:
                    left.cancel()

    def _start(self, number: int, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._tasks[number] = asyncio.create_task(work)
        task.add_done_callback(partial(self._task_ended, number))
        return task

    def _task_ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        if task.cancelled() or self._failure.done():
            return
        if (error := task.exception()) is not None:
            # The other side would wait for an answer that never comes.
            self._failure.set_exception(error)

    async def _answer(self, ask: Ask) -> None:
        try:
            value = await getattr(self._backend, ask.method)(*ask.arguments, **ask.options)
        except BaseException as error:  # noqa: BLE001 Panics in Rust are no ``Exception``.
            self._fail(ask.number, error)
        else:
            self._has_started |= ask.method == "start"
            if ask.method == "stop":
                await self._end_streams()
            self._send_stats()
            self._channel.send(Ended(ask.number, None, value))
            if ask.method == "start":
                # Full collections would stop every stream for all that a process starts with.
                self._channel.flush()
                gc.collect()
                gc.freeze()

    async def _end_streams(self) -> None:
        """The backend has, and nobody needs to have read what is left."""
        self._has_stopped = True
        for taken in self._taken.values():
            taken.release()
        if self._streams:
            await asyncio.wait([*self._streams], timeout=LAST_WORDS_S)

    async def _run(self, stream: Stream) -> None:
        taken = self._taken[stream.number] = asyncio.Semaphore(REPORT_EVERY)
        num_made = num_read = 0

        def made(index: int, item: Item) -> None:
            nonlocal num_made
            num_made += 1
            if num_made <= BEGINNING:
                self._send_stats()
            self._channel.send(Made(stream.number, item, index))

        heard = made if stream.method == "pool" else lambda item: made(0, item)
        items: Any = None
        try:
            items = getattr(self._backend, stream.method)(replace(stream.request, on_made=heard))
            async for item in items:
                num_read += 1
                if num_read > num_made:
                    # Not every backend says so as it makes one.
                    made(getattr(item, "index", 0), item)
                if not self._has_stopped:
                    await taken.acquire()
        except BaseException as error:  # noqa: BLE001 Panics in Rust are no ``Exception``.
            self._fail(stream.number, error)
        else:
            self._end(stream.number, None)
        finally:
            del self._taken[stream.number]
            if close := getattr(items, "aclose", None):
                await close()

    def _fail(self, number: int, error: BaseException) -> None:
        """Raises ``error`` again if it is nothing of the backend's, and none of its requests'."""
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise error
            error = StepError("the engine cancelled the request")
        elif isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        self._end(number, error)

    def _end(self, number: int, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, BackendError | ValueError):
            logger.error("the backend failed", exc_info=error)
        self._send_stats()
        self._channel.send(Ended(number, None if error is None else Failure.of(error)))

    async def _tell_stats(self) -> None:
        while True:
            await asyncio.sleep(STATS_EVERY_S)
            if self._channel.num_unread_bytes < MOST_UNREAD_BYTES:
                self._send_stats()

    def _send_stats(self) -> None:
        if not self._has_started or self._has_stopped:
            return
        stats = self._backend.stats()
        if stats is not self._sent_stats:
            self._sent_stats = stats
            self._channel.send(Stats(stats))


class _ToChannel(logging.handlers.QueueHandler):
    """Lines of a log, from any thread."""

    def __init__(self, channel: Channel) -> None:
        # The queue is what ``enqueue`` makes it.
        super().__init__(None)  # type: ignore[arg-type]
        self._channel = channel
        self._loop = asyncio.get_running_loop()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Without what can't be sent, and with its traceback where formatters look for one."""
        sent = copy.copy(record)
        sent.msg, sent.args = record.getMessage(), None
        if record.exc_info:
            sent.exc_text = sent.exc_text or logging.Formatter().formatException(record.exc_info)
            sent.exc_info = (None, None, None)
        for name, value in vars(sent).items():
            if not isinstance(value, str | int | float | tuple | None):
                setattr(sent, name, str(value))
        return sent

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(RuntimeError):
            # A loop that is closed has nobody left who reads.
            self._loop.call_soon_threadsafe(self._send, record)

    def _send(self, record: logging.LogRecord) -> None:
        is_behind = self._channel.num_unread_bytes >= MOST_UNREAD_BYTES
        if record.levelno >= logging.WARNING or not is_behind:
            self._channel.send(Logged(record))


async def serve(name: str, end: socket.socket, level: int) -> None:
    """The backend ``name``, to whoever has the other ``end``, and lines of the log from ``level``
    on. Ends the process, whatever threads hang."""

    def on_unsendable(message: FromEngine, error: Exception) -> None:
        if isinstance(message, Made | Ended):
            channel.send(Ended(message.number, Failure.of(error)))

    channel = await Channel.over(end, on_unsendable)
    root = logging.getLogger()
    root.handlers, root.level = [_ToChannel(channel)], level
    try:
        backend = create_backend(name)
    except Exception as error:  # noqa: BLE001 Whatever it is, who starts the engine is told.
        async for messages in channel.received():
            for message in messages:
                channel.send(Ended(message.number, Failure.of(error)))
    else:
        await EngineServer(backend, channel).run()
    channel.close()
    os._exit(0)


def main(name: str, fd: int, level: int) -> None:
    """Ends with whoever started it."""
    faulthandler.enable()
    give_way()
    # Whoever started this one is told, too, and says what is to be done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        uvloop.run(serve(name, socket.socket(fileno=fd), level))
    except BaseException:  # noqa: BLE001 Nothing is left to handle it, and threads may hang.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
