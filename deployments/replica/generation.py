"""The prompts of one HTTP request, generated concurrently and merged into one stream of deltas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from deployments.backend import (
    Backend,
    Delta,
    EngineStoppedError,
    GenerationRequest,
    Prefill,
    ResumeError,
    StepError,
    UnavailableError,
)

ChoiceDelta = tuple[int, Delta]
"""Index of the choice over all prompts, and what was added to it."""
MOST_UNREAD = 256
"""Deltas; with so many the backend's own wait."""
MOST_AT_ONCE = 64
"""Deltas that are made events before others have their turn."""


class Generation:
    """Runs while the ``async with`` block does; leaving it cancels whatever is unfinished."""

    def __init__(
        self,
        backend: Backend,
        requests: Sequence[GenerationRequest],
        is_leaving: Callable[[], bool] = lambda: False,
        on_prompt: Callable[[int, Prefill], None] = lambda number, prefill: None,
    ) -> None:
        """``is_leaving``: whether the backend is stopped on purpose, at the end of a drain.
        ``on_prompt`` hears what is told of each prompt, by its number, before its deltas come."""
        self._backend = backend
        self._is_leaving = is_leaving
        self._on_prompt = on_prompt
        self._requests = requests
        self._tasks: list[asyncio.Task[None]] = []
        self._merged: asyncio.Queue[ChoiceDelta | asyncio.Task[None] | None] = asyncio.Queue()
        """None: some prompt got further."""
        self._room = asyncio.Semaphore(MOST_UNREAD)
        """For deltas in ``_merged``."""
        self._admitted: set[int] = set()
        """First choices of the prompts that the backend has let in."""
        self._prefills: dict[int, Prefill] = {}
        """By first choice; of those that have no token yet."""
        self._num_running = len(requests)
        self.prompt_end = ""
        """Of the prompt of a chat, once it has been let in."""
        self.left_out: tuple[str, ...] = ()
        """What of its tools is not enforced, then."""

    async def __aenter__(self) -> Self:
        first_choice = 0
        for request in self._requests:
            task = asyncio.create_task(self._run(request, first_choice))
            task.add_done_callback(self._merged.put_nowait)
            self._tasks.append(task)
            first_choice += request.n
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def finished(self) -> bool:
        """Every sequence has ended and ``next`` has returned all there was."""
        return self._num_running == 0 and self._merged.empty()

    @property
    def is_admitted(self) -> bool:
        """Whether the backend has let all prompts in."""
        return len(self._admitted) == len(self._requests)

    @property
    def prefill(self) -> Prefill | None:
        """Of all prompts without a token together; None: there are none that are known of."""
        if not self._prefills:
            return None
        prefills = self._prefills.values()
        return Prefill(
            sum(one.num_computed_tokens for one in prefills),
            sum(one.num_prompt_tokens for one in prefills),
        )

    async def next(self, wait_s: float | None = None) -> list[ChoiceDelta]:
        """Deltas that are there, waiting up to ``wait_s`` for anything to happen. Empty: there is
        none yet, and the backend is well. Raises what it raised for any of the prompts."""
        try:
            async with asyncio.timeout(wait_s):
                item = await self._merged.get()
        except TimeoutError:
            await self._check_health()
            return []
        batch: list[ChoiceDelta] = []
        while True:
            if isinstance(item, asyncio.Task):
                self._num_running -= 1
                if item.cancelled():
                    # Not by this object, which has no reader left by then.
                    raise StepError("The engine cancelled the request.")
                item.result()
            elif item is not None:
                self._room.release()
                batch.append(item)
            if self._merged.empty() or len(batch) >= MOST_AT_ONCE:
                return batch
            item = self._merged.get_nowait()

    async def _check_health(self) -> None:
        """Whoever waits here would never hear of a step that hangs."""
        try:
            await self._backend.check_health()
        except UnavailableError as error:
            raise self._gone(error, EngineStoppedError) from error

    def _gone(self, error: UnavailableError, kind: type[UnavailableError]) -> UnavailableError:
        """What is nobody's fault is told apart from what this request may have done: ``kind``."""
        return (UnavailableError if self._is_leaving() else kind)(str(error))

    async def _run(self, request: GenerationRequest, first_choice: int) -> None:
        num_unfinished = request.n
        unreplayed = {index for index, token_ids in enumerate(request.resume) if token_ids}
        deltas = self._backend.generate(request)
        taken_in = False
        try:
            async for delta in deltas:
                self._admitted.add(first_choice)
                if isinstance(delta, Prefill):
                    self.prompt_end = delta.prompt_end or self.prompt_end
                    self.left_out = delta.left_out or self.left_out
                    self._on_prompt(first_choice // request.n, delta)
                    self._prefills[first_choice] = delta
                    self._merged.put_nowait(None)
                    continue
                self._prefills.pop(first_choice, None)
                taken_in = True
                if delta.finish_reason == "abort":
                    # A cut answer must not look like a whole one.
                    raise EngineStoppedError("The engine stopped before the request had finished.")
                if delta.replayed:
                    unreplayed.discard(delta.index)
                elif delta.index in unreplayed:
                    raise ResumeError("The engine began again instead of going on.")
                num_unfinished -= delta.finish_reason is not None
                await self._room.acquire()
                self._merged.put_nowait((first_choice + delta.index, delta))
        except UnavailableError as error:
            raise self._gone(error, EngineStoppedError if taken_in else type(error)) from error
        finally:
            # The protocol asks for an iterator only; one that can be closed is closed now.
            if close := getattr(deltas, "aclose", None):
                await close()
        if num_unfinished:
            raise StepError("The engine ended the request before it had finished.")
