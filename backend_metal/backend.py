"""The ``metal`` backend: the paged engine behind the serving side's asynchronous protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from backend_metal.engine.build import build_engine
from backend_metal.engine.engine import Engine, Output
from backend_metal.engine.loop import EngineLoop
from backend_metal.engine.prompt import encode_prompt
from deployments.backend import (
    BackendError,
    BackendStats,
    Delta,
    EngineConfig,
    GenerationRequest,
    InvalidRequestError,
    ModelInfo,
    UnavailableError,
)


class MetalBackend:
    """Runs on Metal, CUDA or the CPU: see ``EngineConfig.device``."""

    def __init__(self) -> None:
        self._loop: EngineLoop | None = None
        self._engine: Engine | None = None
        self._streams: dict[str, asyncio.Queue[Delta | BackendError]] = {}
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        # One thread, so that prompts are tokenized in order and never beside each other.
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    async def start(self, config: EngineConfig) -> ModelInfo:
        event_loop = asyncio.get_running_loop()

        def deliver(outputs: list[Output]) -> None:
            event_loop.call_soon_threadsafe(self._dispatch, outputs)

        self._loop = EngineLoop(partial(build_engine, config), deliver)
        self._loop.start()
        self._engine = await asyncio.wrap_future(self._loop.started)
        name = config.served_model_name or config.model.rstrip("/").rsplit("/", 1)[-1]
        return ModelInfo(name, self._engine.max_model_len)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        if self._loop is None or self._engine is None or self._draining:
            raise UnavailableError("the engine is not taking requests")
        self._loop.check_health()
        if request.request_id in self._streams:
            raise InvalidRequestError(f"request id {request.request_id!r} is already in use")
        stream: asyncio.Queue[Delta | BackendError] = asyncio.Queue()
        self._streams[request.request_id] = stream
        self._idle.clear()
        unfinished = request.n
        arrival_time = time.perf_counter()
        try:
            prompt_token_ids = await asyncio.get_running_loop().run_in_executor(
                self._tokenizing,
                encode_prompt,
                self._engine.tokenizer,
                request.prompt,
                self._engine.vocab_size,
            )
            self._loop.submit(partial(_add, request, prompt_token_ids, arrival_time))
            while unfinished:
                item = await stream.get()
                if isinstance(item, BackendError):
                    unfinished = 0
                    raise item
                unfinished -= item.finish_reason is not None
                yield item
        finally:
            del self._streams[request.request_id]
            if not self._streams:
                self._idle.set()
            if unfinished:
                self._loop.submit(partial(_abort, request.request_id))

    def stats(self) -> BackendStats:
        if self._loop is None:
            raise UnavailableError("the engine has not started")
        return self._loop.stats()

    async def check_health(self) -> None:
        if self._loop is None:
            raise UnavailableError("the engine has not started")
        self._loop.check_health()

    async def drain(self) -> None:
        self._draining = True
        await self._idle.wait()

    async def stop(self) -> None:
        self._draining = True
        if self._loop is not None:
            await asyncio.to_thread(self._loop.stop)
        self._tokenizing.shutdown(wait=False)

    def _dispatch(self, outputs: list[Output]) -> None:
        for output in outputs:
            if stream := self._streams.get(output.request_id):
                stream.put_nowait(output.item)


def _add(
    request: GenerationRequest, prompt_token_ids: list[int], arrival_time: float, engine: Engine
) -> list[Output]:
    try:
        engine.add_request(request, prompt_token_ids, arrival_time)
    except BackendError as error:
        return [Output(request.request_id, error)]
    return []


def _abort(request_id: str, engine: Engine) -> list[Output]:
    return engine.abort(request_id)
