"""Attempts at answers: what each has used, for gateways that leave before they have read it all."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from deployments.backend import Delta, Pooled, Prefill
from deployments.http.errors import ApiError
from deployments.wire.last_word import LastWord
from deployments.wire.reading import CacheReading, Lane

MOST_REMEMBERED = 4096
MOST_TENANTS = 1024
"""Whose cache hits are told; of more the latest."""


class Tally:
    """What the backend has made for one attempt, read or not."""

    def __init__(self, choices_per_prompt: int, tenant: str = "") -> None:
        self.tenant = tenant
        self.cache = CacheReading()
        """Of the prompts that have a token."""
        self.ended = asyncio.Event()
        self._choices_per_prompt = choices_per_prompt
        self._prompt_tokens: dict[int, int] = {}
        """Of the prompts that were admitted."""
        self._computed_tokens: dict[int, int] = {}
        """Of the same."""
        self._begun = set[int]()
        self._completion_tokens = 0
        self._unfinished = Counter[int]()
        """Sequences, by prompt."""
        self._generated: dict[tuple[int, int], int] = {}
        """Tokens of the sequences that run and have any, by prompt and number."""

    def made(self, prompt: int, item: Delta | Pooled | Prefill) -> None:
        if prompt not in self._prompt_tokens:
            self._prompt_tokens[prompt] = item.num_prompt_tokens
            self._unfinished[prompt] = self._choices_per_prompt
        if isinstance(item, Prefill):
            self._computed_tokens[prompt] = item.num_computed_tokens
        elif isinstance(item, Delta):
            self._completion_tokens += len(item.token_ids)
            if prompt not in self._begun:
                self._begun.add(prompt)
                self.cache += CacheReading(
                    hit_tokens=item.num_cached_tokens, query_tokens=item.num_prompt_tokens
                )
            self._computed_tokens[prompt] = item.num_prompt_tokens
            sequence = prompt, item.index
            if item.finish_reason is None:
                had = self._generated.get(sequence, 0)
                self._generated[sequence] = had + len(item.token_ids)
            else:
                self._unfinished[prompt] -= 1
                self._generated.pop(sequence, None)

    @property
    def last_word(self) -> LastWord:
        # A step that is under way ends before its sequences can.
        in_step = self._unfinished.total()
        return LastWord(sum(self._prompt_tokens.values()), self._completion_tokens + in_step)

    def lanes(self, attempt: str) -> Iterator[Lane]:
        """Its sequences that have not ended; of a prompt without a token so far, one."""
        generated = list(self._generated.items())
        for prompt, num_tokens in list(self._prompt_tokens.items()):
            computed = self._computed_tokens.get(prompt, 0)
            begun = [(index, n) for (of, index), n in generated if of == prompt]
            if not begun and self._unfinished[prompt]:
                begun = [(0, 0)]
            for index, num_generated in begun:
                yield Lane(
                    id=f"{attempt[:12]}-{prompt}-{index}",
                    prompt_tokens=num_tokens,
                    computed_tokens=computed,
                    generated_tokens=num_generated,
                    tenant=self.tenant,
                )


class Attempts:
    """Those that run, and the latest that have ended."""

    def __init__(self) -> None:
        self._running: dict[str, Tally] = {}
        self._ended: OrderedDict[str, LastWord] = OrderedDict()
        self._caches: OrderedDict[str, CacheReading] = OrderedDict()
        """Of attempts that have ended, by tenant, the latest last."""

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
            self._caches[tally.tenant] = (
                self._caches.pop(tally.tenant, CacheReading()) + tally.cache
            )
            if len(self._caches) > MOST_TENANTS:
                self._caches.popitem(last=False)
            tally.ended.set()

    def lanes(self, most: int) -> tuple[Lane, ...]:
        """Of what gateways have here, the oldest first."""
        lanes = (lane for attempt, tally in self._running.items() for lane in tally.lanes(attempt))
        return tuple(islice(lanes, most))

    def tenant_caches(self) -> Mapping[str, CacheReading]:
        """What each tenant's prompts have found in the prefix cache."""
        caches = dict(self._caches)
        for tally in self._running.values():
            caches[tally.tenant] = caches.get(tally.tenant, CacheReading()) + tally.cache
        return caches

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
