"""The other side of an engine's process: a ``Backend`` that has all its work done there."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any

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
    ignore,
)
from deployments.backend.config import EngineConfig
from deployments.backend.delta import SpelledToken
from deployments.backend.errors import BackendError, EngineStoppedError, UnavailableError
from deployments.backend.pooling import PoolingRequest
from deployments.backend.protocol import ModelInfo, create_backend, entry_point
from deployments.backend.request import GenerationRequest
from deployments.backend.stats import BackendStats

logger = logging.getLogger(__name__)

END_S = 10.0
"""For a process that is to end, after which it is killed."""


class _Reading:
    """A stream that somebody reads."""

    def __init__(self, on_made: Callable[[int, Any], None]) -> None:
        self._on_made = on_made
        self.items: asyncio.Queue[Item | Ended | Exception] = asyncio.Queue()

    def take(self, place: int, item: Item) -> None:
        try:
            self._on_made(place, item)
        except Exception as error:  # noqa: BLE001 It is this reader's, and is raised there.
            self.items.put_nowait(error)
        else:
            self.items.put_nowait(item)


_MODULE = __name__.rpartition(".")[0]
_RUN = (
    "import runpy, sys; sys.path[:] = sys.argv.pop(1).split(':'); del sys.argv[0]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
"""Its modules are those of this process: ``PYTHONPATH`` would put all of them before Python's."""


class EngineProcess:
    """The backend ``name``, in a process that ends with this one. Belongs to one event loop.

    If that process ends by itself, its streams get ``EngineStoppedError`` at once, and whatever is
    asked from then on ``UnavailableError``. One that is stopped, or hangs, answers nothing:
    ``check_health`` says so after ``EngineConfig.step_timeout_s``.
    """

    def __init__(self, name: str) -> None:
        """Raises ``ValueError`` as ``create_backend`` does, for a name that is not known."""
        self.package = entry_point(name).module.partition(".")[0]
        """Whose log the backend writes."""
        self.lost = asyncio.Event()
        """The process has ended by itself."""
        self._name = name
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._readings: dict[int, _Reading] = {}
        self._stats: BackendStats | None = None
        self._patience_s = 0.0
        self._asked_since = 0.0
        """When it was asked how it is, by the loop's clock, if it has said nothing since."""
        self._is_silent = False
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._gone = "the engine has not started"
        """Why nothing can be asked; empty: it can."""

    def check(self, config: EngineConfig) -> None:
        create_backend(self._name).check(config)

    async def start(self, config: EngineConfig) -> ModelInfo:
        self._patience_s = config.step_timeout_s
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = self._spawn(theirs)
            self._channel = await Channel.over(ours, self._unsendable)
            self._gone = ""
            self._hearing = asyncio.create_task(self._hear(self._channel))
            model: ModelInfo = await self._ask("start", config)
        except BaseException:
            await self._end()
            ours.close()
            raise
        return model

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Any, None]:
        def on_made(place: int, item: Any) -> None:
            request.on_made(item)

        return self._items("generate", replace(request, on_made=ignore), on_made)

    def pool(self, request: PoolingRequest) -> AsyncGenerator[Any, None]:
        return self._items("pool", replace(request, on_made=ignore), request.on_made)

    async def tokenize(
        self, request: GenerationRequest, *, add_special_tokens: bool = True
    ) -> list[int]:
        asked = replace(request, on_made=ignore)
        token_ids: list[int] = await self._ask(
            "tokenize", asked, add_special_tokens=add_special_tokens
        )
        return token_ids

    async def detokenize(self, token_ids: Sequence[int], *, tenant: str = "") -> str:
        text: str = await self._ask("detokenize", token_ids, tenant=tenant)
        return text

    async def spell(self, token_ids: Sequence[int], *, tenant: str = "") -> list[SpelledToken]:
        spelled: list[SpelledToken] = await self._ask("spell", token_ids, tenant=tenant)
        return spelled

    def stats(self) -> BackendStats:
        """As they were a tenth of a second ago, but with all requests that have begun or ended."""
        if self._stats is None:
            raise UnavailableError(self._gone or "the engine has not started")
        return self._stats

    async def check_health(self) -> None:
        self._asked_since = self._asked_since or asyncio.get_running_loop().time()
        try:
            # Whoever asks again while it is silent does not wait as long again.
            async with asyncio.timeout_at(self._asked_since + self._patience_s):
                await self._ask("check_health")
        except TimeoutError as error:
            self._is_silent = True
            raise UnavailableError(
                f"the engine's process has not answered for {self._patience_s:g} s"
            ) from error

    async def drain(self) -> None:
        await self._ask("drain")

    async def stop(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        try:
            async with asyncio.timeout(END_S if self._is_silent else self._patience_s + END_S):
                await self._ask("stop")
        except (TimeoutError, BackendError, RuntimeError, ValueError) as error:
            logger.warning("The engine's process is ended without having stopped: %r", error)
        finally:
            await self._end()

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        level = logging.getLogger(_MODULE).getEffectiveLevel()
        here = os.getcwd()
        # Ray puts the working directory first, whose files may be named as Python's modules are.
        folders = sorted((one or here for one in sys.path), key=here.__eq__)
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-c", _RUN, os.pathsep.join(folders)),
                *(_MODULE, self._name, str(theirs.fileno()), str(level)),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    async def _end(self) -> None:
        self._gone = self._gone or "the engine is not running"
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            await self._reap(self._process)
        if self._hearing is not None:
            await self._hearing

    async def _reap(self, process: subprocess.Popen[bytes]) -> int:
        """Its status, once it has ended."""
        try:
            return await asyncio.to_thread(process.wait, END_S)
        except subprocess.TimeoutExpired:
            logger.error("the engine's process does not end, and is killed")
            process.kill()
            return await asyncio.to_thread(process.wait)

    async def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        number = next(self._numbers)
        self._send(Ask(number, method, arguments, options))
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            return await answer
        finally:
            if self._asked.pop(number, None) is not None:
                self._tell(Leave(number))

    async def _items(
        self,
        method: str,
        request: GenerationRequest | PoolingRequest,
        on_made: Callable[[int, Any], None],
    ) -> AsyncGenerator[Any, None]:
        number = next(self._numbers)
        self._send(Stream(number, method, request))
        reading = self._readings[number] = _Reading(on_made)
        num_read = 0
        try:
            while not isinstance(item := await reading.items.get(), Ended):
                if isinstance(item, Exception):
                    raise item
                num_read += 1
                if num_read % REPORT_EVERY == 0:
                    self._tell(Taken(number, REPORT_EVERY))
                yield item
            if item.failure is not None:
                raise item.failure.error()
        finally:
            if self._readings.pop(number, None) is not None:
                self._tell(Leave(number))

    def _tell(self, message: Taken | Leave) -> None:
        """If there is anybody to hear it."""
        if not self._gone:
            self._send(message)

    def _send(self, message: ToEngine) -> None:
        if self._gone or self._channel is None:
            raise UnavailableError(self._gone)
        self._channel.send(message)

    def _unsendable(self, message: ToEngine, error: Exception) -> None:
        self._heard(Ended(message.number, Failure.of(error)))

    async def _hear(self, channel: Channel) -> None:
        try:
            async for messages in channel.received():
                self._asked_since, self._is_silent = 0.0, False
                for message in messages:
                    self._heard(message)
        except Exception:
            # Nobody would hear of anything any more.
            logger.exception("What the engine's process says can't be understood: it is ended.")
        was_told = bool(self._gone)
        self._gone = self._gone or "the engine's process has ended"
        channel.close()
        for number in [*self._asked]:
            self._heard(Ended(number, Failure.of(UnavailableError(self._gone))))
        for number in [*self._readings]:
            self._heard(Ended(number, Failure.of(EngineStoppedError(self._gone))))
        if not was_told:
            assert self._process is not None
            status = await self._reap(self._process)
            logger.error("The engine's process has ended by itself, with status %s", status)
            self.lost.set()

    def _heard(self, message: FromEngine) -> None:
        match message:
            case Made(number, item, place):
                if reading := self._readings.get(number):
                    reading.take(place, item)
            case Stats(stats):
                self._stats = stats
            case Logged(record):
                log = logging.getLogger(record.name)
                if log.isEnabledFor(record.levelno):
                    log.handle(record)
            case Ended(number, failure, value):
                if reading := self._readings.pop(number, None):
                    reading.items.put_nowait(message)
                elif (answer := self._asked.pop(number, None)) and not answer.done():
                    if failure is None:
                        answer.set_result(value)
                    else:
                        answer.set_exception(failure.error())
