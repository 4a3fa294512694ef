"""Attempts at answers: what each has used, for gateways that leave before they have read it all."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from deployments.backend import Delta, Pooled, Prefill
from deployments.http.errors import ApiError
from deployments.wire.last_word import LastWord

MOST_REMEMBERED = 4096


class Tally:
    """What the backend has made for one attempt, read or not."""

    def __init__(self, choices_per_prompt: int) -> None:
        self.ended = asyncio.Event()
        self._choices_per_prompt = choices_per_prompt
        self._prompt_tokens: dict[int, int] = {}
        """Of the prompts that were admitted."""
        self._completion_tokens = 0
        self._unfinished = Counter[int]()
        """Sequences, by prompt."""

    def made(self, prompt: int, item: Delta | Pooled | Prefill) -> None:
        if prompt not in self._prompt_tokens:
            self._prompt_tokens[prompt] = item.num_prompt_tokens
            self._unfinished[prompt] = self._choices_per_prompt
        if isinstance(item, Delta):
            self._completion_tokens += len(item.token_ids)
            self._unfinished[prompt] -= item.finish_reason is not None

    @property
    def last_word(self) -> LastWord:
        # A step that is under way ends before its sequences can.
        in_step = self._unfinished.total()
        return LastWord(sum(self._prompt_tokens.values()), self._completion_tokens + in_step)


class Attempts:
    """Those that run, and the latest that have ended."""

    def __init__(self) -> None:
        self._running: dict[str, Tally] = {}
        self._ended: OrderedDict[str, LastWord] = OrderedDict()

    @contextmanager
    def running(self, attempt: str, tally: Tally) -> Iterator[None]:
        """Raises ``ApiError`` if its gateway has left it before it came here."""
        if attempt in self._ended:
            raise ApiError(400, "The gateway has given this attempt up.")
        self._running[attempt] = tally
        try:
            yield
        finally:
            del self._running[attempt]
            self._remember(attempt, tally.last_word)
            tally.ended.set()

    async def last_word(self, attempt: str) -> LastWord:
        """Of one whose connection is closed: once it has ended. One that is not here yet will not
        run."""
        if tally := self._running.get(attempt):
            await tally.ended.wait()
        if attempt not in self._ended:
            self._remember(attempt, LastWord())
        return self._ended[attempt]

    def _remember(self, attempt: str, last_word: LastWord) -> None:
        self._ended[attempt] = last_word
        if len(self._ended) > MOST_REMEMBERED:
            self._ended.popitem(last=False)
