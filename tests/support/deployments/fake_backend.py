"""A backend written against ``deployments/backend`` alone: it says the prompt's words again.

Sequence ``i`` of a prompt starts at its ``i``-th word and ends after each word was said once
(``ignore_eos`` goes round again). A token is a word with the space before it. Tests hold it at a
gate, make it fail, and watch how many of its iterators are alive.
"""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from deployments.backend import (
    AttentionStatus,
    BackendError,
    BackendStats,
    ChatPrompt,
    ContextLengthError,
    Delta,
    EngineConfig,
    FinishReason,
    GenerationRequest,
    Histogram,
    InvalidRequestError,
    ModelInfo,
    ModelPlan,
    Pooled,
    PoolingInfo,
    PoolingInput,
    PoolingRequest,
    Prefill,
    Prompt,
    PromptTooLongError,
    QueueFullError,
    ResumeError,
    SamplingParams,
    SpelledToken,
    StepError,
    TokenLogprob,
    UnavailableError,
)

Fault = Literal[
    "step_error",
    "unavailable",
    "crash",
    "cancel",
    "ends_early",
    "abort",
    "queue_full",
    "full_for_tenant",
]

Item = TypeVar("Item", Delta, Prefill)
VECTOR_SIZE = 8


class FakeOptions(BaseModel):
    """``engine.options`` of this backend."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delay_s: float = 0.0
    """Pause before each token."""
    faults: dict[str, Fault] = {}
    """A prompt that contains the key fails so, ``fault_after_tokens`` into each sequence."""
    fault_after_tokens: int = 2
    can_resume: bool = True
    """Whether ``GenerationRequest.resume`` is known here, or ignored."""
    revision: str = ""
    makes_vectors: bool = True
    ranks_by: Literal["cosine", "score"] | None = "cosine"
    prefill_chunk: int | None = None
    """Prompt tokens that are computed at a time; None: all."""


class Level:
    """A number that can be waited for."""

    def __init__(self) -> None:
        self.value = 0
        self._waiters: list[tuple[Callable[[int], bool], asyncio.Future[None]]] = []

    def add(self, change: int) -> None:
        self.value += change
        for reached, waiter in self._waiters:
            if reached(self.value) and not waiter.done():
                waiter.set_result(None)
        self._waiters = [one for one in self._waiters if not one[1].done()]

    async def reaches(self, target: int) -> None:
        await self._wait(lambda value: value == target)

    async def reaches_at_least(self, target: int) -> None:
        await self._wait(lambda value: value >= target)

    async def _wait(self, reached: Callable[[int], bool]) -> None:
        if not reached(self.value):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((reached, waiter))
            await waiter


@dataclass
class Recorder:
    bounds: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    counts: list[int] = field(default_factory=lambda: [0] * 5)
    sum: float = 0.0

    def add(self, value: float) -> None:
        self.counts[sum(value > bound for bound in self.bounds)] += 1
        self.sum += value

    def snapshot(self) -> Histogram:
        return Histogram(self.bounds, tuple(self.counts), self.sum)


class FakeBackend:
    def __init__(self) -> None:
        self.live = Level()
        """Iterators that have been started and have not ended."""
        self.held = Level()
        """Sequences that wait at the gate."""
        self.requests: list[GenerationRequest] = []
        self.pooling_requests: list[PoolingRequest] = []
        self.healthy = True
        self.attention: AttentionStatus | None = None
        """What ``start`` says about attention."""
        self._num_waiting = 0
        self._refusing: str | None = None
        self._stopped = False
        self._hold_at: int | None = None
        self._gate = asyncio.Event()
        self._prefixes: set[tuple[str, ...]] = set()
        self._blocks_used = 0
        self._counters: Counter[str] = Counter()
        self._success: Counter[str] = Counter()
        self._failure: Counter[str] = Counter()
        names = ("first", "output", "between", "whole", "queue", "step")
        self._times = {name: Recorder() for name in names}

    def check(self, config: EngineConfig) -> None:
        FakeOptions.model_validate(config.options)

    def devices(self) -> tuple[str, ...]:
        return ("fake", "cpu")

    def fetch(self, config: EngineConfig) -> Path:
        return Path("/fetched") / config.model

    def plan(self, config: EngineConfig) -> ModelPlan:
        return ModelPlan("fake", 1000, 300, 4096, context=2048, sequence_bytes=400)

    def choose_attention(self, config: EngineConfig) -> AttentionStatus:
        return AttentionStatus("fake", "it is the only one", "fake")

    async def start(self, config: EngineConfig) -> ModelInfo:
        self._config = config
        self._options = FakeOptions.model_validate(config.options)
        self._max_model_len = config.max_model_len or 4096
        self._num_blocks = config.num_kv_blocks or 1024
        self._slots = asyncio.Semaphore(config.max_num_seqs)
        return ModelInfo(
            config.name,
            self._max_model_len,
            self.attention,
            self._options.revision,
            config.other_names,
            config.generation_defaults.over(SamplingParams()),
            pooling=PoolingInfo(
                VECTOR_SIZE,
                prompts={"query": "question "},
                ranks_by=self._options.ranks_by,
            )
            if self._options.makes_vectors
            else None,
        )

    def hold(self, *, after_tokens: int = 0) -> None:
        """From now on every sequence waits at the gate before it says token ``after_tokens``."""
        self._hold_at = after_tokens
        self._gate.clear()

    def release(self) -> None:
        self._hold_at = None
        self._gate.set()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Prefill, None]:
        self.requests.append(request)
        self.live.add(1)
        arrived = time.monotonic()
        try:
            words = self._admit(request)
            yield _made(request, _admission(request, words))
            await self._wait_for_a_slot()
            self._times["queue"].add(time.monotonic() - arrived)
            blocks = -(-len(words) // self._config.block_size)
            self._blocks_used += blocks
            try:
                cached = self._cached_prefix(request.cache_salt, words)
                self._counters["prompt"] += len(words)
                self._counters["hit"] += cached
                finish_reason: str = "stop"
                for computed in self._chunks(len(words)):
                    yield _made(request, Prefill(computed, len(words)))
                if told := _prompt_logprobs(request, words):
                    yield _made(request, Prefill(len(words), len(words), logprobs=told))
                async for delta in self._continue(request, words, cached, arrived):
                    finish_reason = delta.finish_reason or finish_reason
                    yield _made(request, delta)
            finally:
                self._slots.release()
                self._blocks_used -= blocks
            self._success[finish_reason] += 1
            self._times["whole"].add(time.monotonic() - arrived)
        except BackendError as error:
            self._failure[error.error_type] += 1
            raise
        finally:
            self.live.add(-1)

    async def tokenize(
        self, request: GenerationRequest, *, add_special_tokens: bool = True
    ) -> list[int]:
        """A word is a token. One is added before them all, if any is."""
        self.requests.append(request)
        words = self._admit(request)
        adds = add_special_tokens and isinstance(request.prompt, str)
        return [token_id(word) for word in ["<s>"] * adds + words]

    async def detokenize(self, token_ids: Sequence[int], *, tenant: str = "") -> str:
        spelled = await self.spell(token_ids, tenant=tenant)
        return "".join(one.name for one in spelled)

    async def spell(self, token_ids: Sequence[int], *, tenant: str = "") -> list[SpelledToken]:
        """Ids are code points. What Latin-1 lacks is a part of a character."""
        for token_id in token_ids:
            if token_id > 0x10FFFF:
                raise InvalidRequestError(f"tokens has token id {token_id}", param="tokens")
        utf8 = [chr(one).encode()[: 4 if one < 256 else 1] for one in token_ids]
        return [SpelledToken(chr(one), its) for one, its in zip(token_ids, utf8, strict=True)]

    async def pool(self, request: PoolingRequest) -> AsyncGenerator[Pooled | Prefill, None]:
        """Each input is held at the gate as if it were the token with its number."""
        self.pooling_requests.append(request)
        self.live.add(1)
        try:
            if self._refusing:
                raise UnavailableError(self._refusing)
            for index, one in enumerate(request.inputs):
                words = self._words_of_input(one)
                item: Pooled | Prefill
                for item in (Prefill(0, len(words)), Pooled(index, values_of(one), len(words), 0)):
                    if isinstance(item, Pooled):
                        await self._pause(index)
                        if fault := self._fault_of(words):
                            _fail(fault)
                        self._counters["prompt"] += len(words)
                    request.on_made(index, item)
                    yield item
            self._success["stop"] += 1
        except BackendError as error:
            self._failure[error.error_type] += 1
            raise
        finally:
            self.live.add(-1)

    def _words_of_input(self, one: PoolingInput) -> list[str]:
        words = words_of(one.prompt)
        if one.truncate_prompt_tokens is not None:
            kept = one.truncate_prompt_tokens
            words = words[: self._max_model_len if kept == -1 else kept]
        if len(words) > self._max_model_len:
            raise ContextLengthError(
                self._max_model_len, prompt=len(words), completion=0, param=one.param
            )
        if one.max_prompt_tokens is not None and len(words) > one.max_prompt_tokens:
            raise PromptTooLongError(len(words), one.max_prompt_tokens)
        if self._fault_of(words) == "queue_full":
            raise QueueFullError("The fake queue is full.", retry_after=2)
        return words

    def _admit(self, request: GenerationRequest) -> list[str]:
        if self._refusing:
            raise UnavailableError(self._refusing)
        if isinstance(request.prompt, ChatPrompt):
            _check_template_arguments(request.prompt)
        words = words_of(request.prompt)
        if len(words) >= self._max_model_len:
            raise ContextLengthError(
                self._max_model_len,
                prompt=len(words),
                completion=request.sampling.max_tokens,
                param="messages" if isinstance(request.prompt, ChatPrompt) else "prompt",
            )
        if request.max_prompt_tokens is not None and len(words) > request.max_prompt_tokens:
            raise PromptTooLongError(len(words), request.max_prompt_tokens)
        is_full = self._slots.locked() and self._num_waiting >= self._config.max_queued_requests
        if is_full and not request.was_admitted:
            raise QueueFullError(f"{self._num_waiting} requests are waiting.", retry_after=2)
        if self._fault_of(words) == "queue_full":
            raise QueueFullError("The fake queue is full.", retry_after=2)
        if self._fault_of(words) == "full_for_tenant":
            raise QueueFullError("Too many requests wait.", retry_after=2, for_tenant=True)
        return words

    def _fault_of(self, words: list[str]) -> Fault | None:
        text = " ".join(words)
        return next((fault for key, fault in self._options.faults.items() if key in text), None)

    async def _wait_for_a_slot(self) -> None:
        self._num_waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._num_waiting -= 1

    def _chunks(self, num_tokens: int) -> range:
        size = self._options.prefill_chunk or num_tokens
        return range(size, num_tokens, size)

    def _cached_prefix(self, salt: str, words: list[str]) -> int:
        size = self._config.block_size
        prefixes = [(salt, *words[:end]) for end in range(size, len(words), size)]
        hits = sum(prefix in self._prefixes for prefix in prefixes)
        if self._config.prefix_caching:
            self._prefixes.update(prefixes)
        return hits * size

    async def _continue(
        self, request: GenerationRequest, words: list[str], cached: int, arrived: float
    ) -> AsyncGenerator[Delta, None]:
        sequences = [_Sequence(request.sampling, words, i) for i in range(request.n)]
        fault = self._fault_of(words)
        room = self._max_model_len - len(words)
        last = arrived
        if request.sampling.max_tokens == 0:
            for i in range(request.n):
                yield Delta(i, "", (), len(words), cached, finish_reason="length")
            return
        if self._options.can_resume:
            for i, sequence in enumerate(sequences):
                if token_ids := request.resume[i] if request.resume else ():
                    yield replace(
                        sequence.replay(token_ids, room),
                        index=i,
                        num_prompt_tokens=len(words),
                        num_cached_tokens=cached,
                    )
        while unfinished := [one for one in sequences if not one.finish_reason]:
            self._counters["steps"] += 1
            await self._pause(min(sequence.said for sequence in unfinished))
            for sequence in unfinished:
                if fault and sequence.said == self._options.fault_after_tokens:
                    if fault == "ends_early":
                        return
                    _fail(fault)
                first = sequence.said == 0
                token, text, logprobs = sequence.step(room)
                if self._stopped or (fault == "abort" and not first):
                    sequence.finish_reason = "abort"
                now = time.monotonic()
                self._times["first" if first else "between"].add(now - last)
                self._counters["generation"] += 1
                yield Delta(
                    index=sequences.index(sequence),
                    text=text,
                    token_ids=(token,),
                    num_prompt_tokens=len(words),
                    num_cached_tokens=cached,
                    logprobs=logprobs,
                    finish_reason=sequence.finish_reason,
                    stop_string=sequence.stop_string,
                )
            self._times["step"].add(time.monotonic() - last)
            last = time.monotonic()
        self._times["output"].add((last - arrived) / max(one.said for one in sequences))

    async def _pause(self, position: int) -> None:
        if position == self._hold_at:
            self.held.add(1)
            try:
                await self._gate.wait()
            finally:
                self.held.add(-1)
        await asyncio.sleep(self._options.delay_s)

    def stats(self) -> BackendStats:
        times = {name: recorder.snapshot() for name, recorder in self._times.items()}
        return BackendStats(
            requests_running=self.live.value - self._num_waiting,
            requests_waiting=self._num_waiting,
            kv_cache_blocks_total=self._num_blocks,
            kv_cache_blocks_free=self._num_blocks - self._blocks_used,
            memory_active_bytes=0,
            request_success=dict(self._success),
            request_failure=dict(self._failure),
            prompt_tokens=self._counters["prompt"],
            generation_tokens=self._counters["generation"],
            prefix_cache_hit_tokens=self._counters["hit"],
            prefix_cache_query_tokens=self._counters["prompt"],
            preemptions=0,
            steps=self._counters["steps"],
            attention_launches={},
            time_to_first_token=times["first"],
            time_per_output_token=times["output"],
            inter_token_latency=times["between"],
            e2e_request_latency=times["whole"],
            queue_time=times["queue"],
            step_duration=times["step"],
            step_tokens={
                "prefill": self._counters["prompt"] - self._counters["hit"],
                "decode": self._counters["generation"],
            },
            step_sequences={"decode": self._counters["generation"]},
        )

    async def check_health(self) -> None:
        if not self.healthy:
            raise UnavailableError("The fake engine was told to be ill.")

    async def drain(self) -> None:
        self._refusing = "The backend is draining."
        await self.live.reaches(0)

    async def stop(self) -> None:
        self._refusing = "The backend has stopped."
        self._stopped = True
        self.release()


class _Sequence:
    """One continuation: which word comes next, what text may be shown, and when it is over."""

    def __init__(self, sampling: SamplingParams, words: list[str], start: int) -> None:
        self._sampling = sampling
        self._words = words
        self._start = start
        self.said = 0
        self._text = ""
        self._shown = 0
        self.finish_reason: FinishReason | None = None
        self.stop_string: str | None = None

    def step(self, room: int) -> tuple[int, str, tuple[TokenLogprob, ...]]:
        word = self._words[(self._start + self.said) % len(self._words)]
        piece = word if self.said == 0 else f" {word}"
        self.said += 1
        self._text += piece
        found = [at for stop in self._sampling.stop if (at := self._text.find(stop)) >= 0]
        if found:
            self.stop_string = next(s for s in self._sampling.stop if s in self._text)
            self._text, self.finish_reason = self._text[: min(found)], "stop"
        elif self.said == len(self._words) and not self._sampling.ignore_eos:
            self.finish_reason = "stop"
        elif self.said == min(self._sampling.max_tokens or room, room):
            self.finish_reason = "length"
        end = len(self._text) if self.finish_reason else len(self._text) - self._withheld()
        text = self._text[self._shown : end]
        self._shown = max(self._shown, end)
        return token_id(piece), text, self._logprobs(piece)

    def replay(self, token_ids: tuple[int, ...], room: int) -> Delta:
        text, logprobs = "", []
        for token_id in token_ids:
            token, added, of_token = self.step(room)
            if token != token_id:
                raise ResumeError(f"{token_id} should have been {token}.")
            text += added
            logprobs += of_token
        return Delta(
            0,
            text,
            token_ids,
            0,
            0,
            tuple(logprobs),
            self.finish_reason,
            stop_string=self.stop_string,
            replayed=True,
        )

    def _withheld(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        return max(
            (
                size
                for stop in self._sampling.stop
                for size in range(1, len(stop))
                if self._text.endswith(stop[:size])
            ),
            default=0,
        )

    def _logprobs(self, piece: str) -> tuple[TokenLogprob, ...]:
        if self._sampling.logprobs is None:
            return ()
        names = [piece, *(f"{piece}~{i}" for i in range(1, self._sampling.logprobs))]
        top = [
            TokenLogprob(token_id(name), name, name.encode(), -0.5 * (rank + 1))
            for rank, name in enumerate(names[: self._sampling.logprobs])
        ]
        return (TokenLogprob(token_id(piece), piece, piece.encode(), -0.5, tuple(top)),)


def _admission(request: GenerationRequest, words: list[str]) -> Prefill:
    if not request.tells_prompt:
        return Prefill(0, len(words))
    ids = tuple(map(token_id, words))
    return Prefill(0, len(words), prompt_token_ids=ids, prompt_text=" ".join(words))


def _prompt_logprobs(request: GenerationRequest, words: list[str]) -> tuple[TokenLogprob, ...]:
    """Of each word -2, and of what it might be -1, -2 and so on."""
    most = request.sampling.prompt_logprobs
    if most is None or (request.resume and all(request.resume)):
        return ()
    pieces = [word if at == 0 else f" {word}" for at, word in enumerate(words)]
    return tuple(
        TokenLogprob(
            token_id(piece),
            piece,
            piece.encode(),
            -2.0,
            tuple(_alternative(f"{piece}?{i}", -1.0 - i) for i in range(most)),
            rank=2,
        )
        for piece in pieces
    )


def _alternative(name: str, logprob: float) -> TokenLogprob:
    return TokenLogprob(token_id(name), name, name.encode(), logprob)


def _made(request: GenerationRequest, item: Item) -> Item:
    request.on_made(item)
    return item


def _check_template_arguments(prompt: ChatPrompt) -> None:
    if unknown := prompt.template_arguments.keys() - {"add_generation_prompt"}:
        raise InvalidRequestError(
            f"No template here reads {sorted(unknown)}.", param="chat_template_kwargs"
        )


def words_of(prompt: Prompt) -> list[str]:
    """The tokens of a prompt: of a chat, the words of its last message."""
    if isinstance(prompt, ChatPrompt):
        prompt = str(prompt.messages[-1]["content"])
    if isinstance(prompt, str):
        return re.findall(r"\S+", prompt) or ["nothing"]
    return [f"t{token}" for token in prompt]


def token_id(piece: str) -> int:
    return zlib.crc32(piece.encode()) % 50_000


def values_of(one: PoolingInput) -> np.ndarray:
    """A vector of length 1, which the prompt decides; of a pair how many words it shares."""
    if isinstance(one.prompt, ChatPrompt):
        query, document = ({*str(part["content"]).split()} for part in one.prompt.messages)
        return np.array([len(query & document) - 0.5], np.float32)
    seed = zlib.crc32(repr(one.prompt).encode())
    vector = np.random.default_rng(seed).standard_normal(VECTOR_SIZE).astype(np.float32)
    return vector / np.linalg.norm(vector)


def _fail(fault: Fault) -> None:
    match fault:
        case "step_error":
            raise StepError("The fake step failed.")
        case "unavailable":
            raise UnavailableError("The fake engine went away.")
        case "crash":
            raise RuntimeError("secret detail of a fault")
        case "cancel":
            raise asyncio.CancelledError
