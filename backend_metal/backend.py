"""The ``mlx`` backend: the paged engine behind the serving side's asynchronous protocol."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Literal

from backend_metal.device import available_devices
from backend_metal.engine.build import build_engine, check_config
from backend_metal.engine.engine import Engine, Output
from backend_metal.engine.loop import EngineLoop
from backend_metal.engine.plan import check_attention, plan_memory
from backend_metal.engine.requests.pooled import id_of_input
from backend_metal.engine.requests.pooling_run import PoolingRun
from backend_metal.engine.requests.preparation import Preparation, Prepared
from backend_metal.engine.requests.unread import Unread
from backend_metal.engine.requests.waiting_room import WaitingRoom
from backend_metal.engine.text.context_length import Prompted
from backend_metal.models.load.find import find_checkpoint
from backend_metal.models.load.pooling_config import PoolingConfig
from deployments.backend import (
    AttentionStatus,
    BackendError,
    BackendStats,
    Delta,
    EngineConfig,
    EngineStoppedError,
    GenerationRequest,
    InvalidRequestError,
    ModelInfo,
    ModelPlan,
    Pooled,
    PoolingInfo,
    PoolingRequest,
    Prefill,
    SpelledToken,
    StepError,
    UnavailableError,
)

logger = logging.getLogger(__name__)


MOST_INPUTS_AT_ONCE = 2
"""Of a pooling request, for each place in the batch: some run, while as many are made ready."""

Item = Delta | Pooled | Prefill | BackendError


class MlxBackend:
    """Runs on a GPU or the CPU: see ``EngineConfig.device``."""

    def __init__(self) -> None:
        self._loop: EngineLoop | None = None
        self._engine: Engine | None = None
        self._waiting_room: WaitingRoom | None = None
        self._requests: set[str] = set()
        self._sinks: dict[str, Callable[[Item], None]] = {}
        """Who takes what the engine makes, by what it calls their requests."""
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._preparation: Preparation | None = None

    def check(self, config: EngineConfig) -> None:
        check_config(config)

    def devices(self) -> tuple[str, ...]:
        return available_devices()

    def fetch(self, config: EngineConfig) -> Path:
        return find_checkpoint(config.model, config.revision)[0]

    def plan(self, config: EngineConfig) -> ModelPlan:
        return plan_memory(config)

    def choose_attention(self, config: EngineConfig) -> AttentionStatus:
        return check_attention(config)

    async def start(self, config: EngineConfig) -> ModelInfo:
        event_loop = asyncio.get_running_loop()

        waiting_room = WaitingRoom(config.max_num_seqs, config.max_queued_requests)

        def deliver(outputs: list[Output]) -> None:
            event_loop.call_soon_threadsafe(self._dispatch, outputs)

        def ended() -> None:
            event_loop.call_soon_threadsafe(self._end_streams)

        self._loop = EngineLoop(
            partial(build_engine, config),
            deliver,
            ended,
            step_timeout_s=config.step_timeout_s,
            keep_resident_s=config.keep_resident,
        )
        self._loop.start()
        self._engine = await asyncio.wrap_future(self._loop.started)
        self._waiting_room = waiting_room
        engine = self._engine
        self._preparation = Preparation(
            engine, limit_s=config.step_timeout_s, most_waiting=config.max_queued_requests
        )
        return ModelInfo(
            config.name,
            engine.max_model_len,
            engine.attention,
            engine.revision,
            config.other_names,
            engine.default_sampling,
            chat_template=engine.prompts.template.source,
            template_variables=engine.prompts.template.variables,
            added_tokens={
                token.content: token_id
                for token_id, token in engine.tokenizer.added_tokens_decoder.items()
            },
            special_tokens=frozenset(
                token.content
                for token in engine.tokenizer.added_tokens_decoder.values()
                if token.special
            ),
            pooling=PoolingInfo(
                engine.state_size,
                engine.pooling.normalizes,
                engine.pooling.prompts,
                engine.pooling.default_prompt,
                _ranks_by(engine.pooling),
            ),
            longest_token=engine.prompts.longest_token,
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Prefill, None]:
        loop, _, waiting_room, preparation = self._started()
        arrival_time = time.perf_counter()
        request_id = request.request_id
        stream = Unread(
            request.n,
            on_made=request.on_made,
            pause=partial(loop.submit, partial(_pause, request_id)),
            resume=partial(loop.submit, partial(_resume, request_id)),
        )
        unfinished = request.n

        def take(item: Item) -> None:
            assert not isinstance(item, Pooled), "a vector for a request that generates"
            stream.put(item)

        self._enter(request, [request])
        self._sinks[request_id] = _beginning(take, partial(waiting_room.begin, request_id))
        try:
            try:
                prepared = await preparation.prepare(request)
            except BackendError as error:
                loop.submit(partial(_count_refusal, error))
                raise
            loop.check_health()
            loop.submit(partial(_add, request, prepared, arrival_time))
            while unfinished:
                item = await stream.get()
                if isinstance(item, BackendError):
                    unfinished = 0
                    raise item
                if isinstance(item, Delta):
                    unfinished -= item.finish_reason is not None
                yield item
        finally:
            del self._sinks[request_id]
            waiting_room.leave(request_id)
            self._left(request_id)
            if unfinished:
                loop.submit(partial(_abort, [request_id]))

    async def pool(self, request: PoolingRequest) -> AsyncGenerator[Pooled | Prefill, None]:
        loop, engine, waiting_room, preparation = self._started()
        arrival_time = time.perf_counter()
        request_id = request.request_id

        def add(index: int, token_ids: list[int]) -> None:
            input_id = id_of_input(request_id, index)

            def take(item: Item) -> None:
                assert not isinstance(item, Delta), "a token for a request of vectors"
                run.put(index, item)

            self._sinks[input_id] = _beginning(take, partial(waiting_room.begin, request_id))
            loop.check_health()
            loop.submit(partial(_add_input, request, index, token_ids, arrival_time))

        run = PoolingRun(
            request,
            most_at_once=MOST_INPUTS_AT_ONCE * engine.scheduler.max_num_seqs,
            encode=partial(preparation.encode_input, request.tenant),
            add=add,
        )
        self._enter(request, request.inputs)
        try:
            async with aclosing(run.items()) as items:
                async for item in items:
                    if isinstance(item, Pooled):
                        del self._sinks[id_of_input(request_id, item.index)]
                    yield item
        finally:
            unfinished = [id_of_input(request_id, index) for index in run.unread]
            for input_id in unfinished:
                del self._sinks[input_id]
            waiting_room.leave(request_id)
            self._left(request_id)
            if unfinished:
                loop.submit(partial(_abort, unfinished))

    async def tokenize(
        self, request: GenerationRequest, *, add_special_tokens: bool = True
    ) -> list[int]:
        _, engine, _, preparation = self._started()
        engine.prompts.check_size(request)
        preparation.check_health()
        return await preparation.tokenize(request, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int], *, tenant: str = "") -> str:
        *_, preparation = self._started()
        preparation.check_health()
        return await preparation.detokenize(token_ids, tenant)

    async def spell(self, token_ids: Sequence[int], *, tenant: str = "") -> list[SpelledToken]:
        *_, preparation = self._started()
        preparation.check_health()
        return await preparation.spell(token_ids, tenant)

    def stats(self) -> BackendStats:
        if self._loop is None:
            raise UnavailableError("the engine has not started")
        return self._loop.stats()

    async def check_health(self) -> None:
        if self._loop is None:
            raise UnavailableError("the engine has not started")
        self._loop.check_health()
        if self._preparation is not None:
            self._preparation.check_health()

    async def drain(self) -> None:
        self._draining = True
        await self._idle.wait()

    async def stop(self) -> None:
        self._draining = True
        if self._loop is not None:
            await asyncio.to_thread(self._loop.stop)
        # A thread that hangs ends no stream.
        self._end_streams()
        if self._preparation is not None:
            self._preparation.stop()

    def _started(self) -> tuple[EngineLoop, Engine, WaitingRoom, Preparation]:
        if not (self._loop and self._engine and self._waiting_room and self._preparation):
            raise UnavailableError("the engine has not started")
        return self._loop, self._engine, self._waiting_room, self._preparation

    def _enter(
        self,
        request: GenerationRequest | PoolingRequest,
        prompts: Sequence[Prompted],
    ) -> None:
        """Into the waiting room. Raises ``BackendError`` for one that can't be let in."""
        loop, engine, waiting_room, preparation = self._started()
        try:
            self._check_admission(request.request_id, loop)
            for one in prompts:
                engine.prompts.check_size(one)
            preparation.check_health()
            waiting_room.enter(request, seconds_per_request=engine.seconds_per_request)
        except BackendError as error:
            loop.submit(partial(_count_refusal, error))
            raise
        self._requests.add(request.request_id)
        self._idle.clear()

    def _left(self, request_id: str) -> None:
        self._requests.remove(request_id)
        if not self._requests:
            self._idle.set()

    def _check_admission(self, request_id: str, loop: EngineLoop) -> None:
        """What can be said before the prompt is tokenized, which takes time and memory."""
        if self._draining:
            raise UnavailableError("the engine is not taking requests")
        loop.check_health()
        if request_id in self._requests:
            raise InvalidRequestError(f"request id {request_id!r} is already in use")

    def _dispatch(self, outputs: list[Output]) -> None:
        for output in outputs:
            if take := self._sinks.get(output.request_id):
                take(output.item)

    def _end_streams(self) -> None:
        """Whatever the engine's thread left open, commands that it never ran included."""
        for take in [*self._sinks.values()]:
            take(EngineStoppedError("the engine stopped"))


def _ranks_by(pooling: PoolingConfig) -> Literal["cosine", "score"] | None:
    if pooling.score is not None:
        return "score"
    return "cosine" if pooling.is_for_vectors else None


def _beginning(take: Callable[[Item], None], begin: Callable[[], None]) -> Callable[[Item], None]:
    """``take``, and ``begin`` with what shows that the request runs."""

    def taking(item: Item) -> None:
        if not (isinstance(item, Prefill) and item.num_computed_tokens == 0):
            begin()
        take(item)

    return taking


def _add(
    request: GenerationRequest, prepared: Prepared, arrival_time: float, engine: Engine
) -> list[Output]:
    try:
        return engine.add_request(
            request,
            prepared.token_ids,
            arrival_time,
            prepared.matcher,
            num_history_tokens=prepared.num_history_tokens,
        )
    except BackendError as error:
        return [Output(request.request_id, error)]
    except Exception as error:
        # Whatever is wrong with it, it is wrong with this request alone.
        request_id = request.request_id
        logger.exception(
            "request %s could not be added", request_id, extra={"request_id": request_id}
        )
        engine.abort(request.request_id)
        return [Output(request.request_id, StepError(f"the request failed: {error}"))]


def _add_input(
    request: PoolingRequest, index: int, token_ids: list[int], arrival_time: float, engine: Engine
) -> list[Output]:
    try:
        return engine.add_input(request, index, token_ids, arrival_time)
    except BackendError as error:
        return [Output(id_of_input(request.request_id, index), error)]


def _abort(request_ids: list[str], engine: Engine) -> list[Output]:
    return [output for request_id in request_ids for output in engine.abort(request_id)]


def _pause(request_id: str, engine: Engine) -> list[Output]:
    engine.pause(request_id)
    return []


def _resume(request_id: str, engine: Engine) -> list[Output]:
    engine.resume(request_id)
    return []


def _count_refusal(error: BackendError, engine: Engine) -> list[Output]:
    engine.count_refusal(error)
    return []
