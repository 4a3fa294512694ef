"""Tokens of resumable streams, kept for a while after their gateway has gone.

A client that comes back is answered from them at once. They are no more than a short cut: the seed
gives the same tokens again, at any replica.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from deployments.wire.checkpoint import Progress

KEPT_FOR_S = 60.0
MAX_TOKENS = 1 << 20
"""Of streams that run no longer; four bytes each."""

Tokens: TypeAlias = "defaultdict[int, array[int]]"
"""By choice."""


class KeptStreams:
    """Streams that run, and those that were left less than ``KEPT_FOR_S`` ago."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._streams: dict[str, Tokens] = {}
        """By answer id."""
        self._left_at: OrderedDict[str, float] = OrderedDict()
        """Those that run no longer, the oldest first."""
        self._num_tokens_left = 0

    def __len__(self) -> int:
        self._forget()
        return len(self._streams)

    @contextmanager
    def recording(self, answer_id: str) -> Iterator[Tokens]:
        """Where to put the tokens of a stream that runs for as long as the block does."""
        tokens: Tokens = defaultdict(lambda: array("i"))
        self._drop(answer_id)
        self._streams[answer_id] = tokens
        try:
            yield tokens
        finally:
            # Unless the client has come back meanwhile, and another response has its place.
            if self._streams.get(answer_id) is tokens:
                self._left_at[answer_id] = self._now()
                self._num_tokens_left += _count(tokens)
                self._forget()

    def find(self, answer_id: str, seen: Mapping[int, int]) -> Progress | None:
        """The first tokens of each choice, as many as the client has ``seen``."""
        self._forget()
        kept: Mapping[int, array[int]] = self._streams.get(answer_id, {})
        found = {choice: kept.get(choice, ())[:count] for choice, count in seen.items()}
        is_whole = all(len(found[choice]) == count for choice, count in seen.items())
        return Progress(found) if found and is_whole else None

    def _forget(self) -> None:
        until = self._now() - KEPT_FOR_S
        while self._left_at:
            answer_id, left_at = next(iter(self._left_at.items()))
            if left_at >= until and self._num_tokens_left <= MAX_TOKENS:
                return
            self._drop(answer_id)

    def _drop(self, answer_id: str) -> None:
        tokens = self._streams.pop(answer_id, None)
        if tokens is not None and self._left_at.pop(answer_id, None) is not None:
            self._num_tokens_left -= _count(tokens)


def _count(tokens: Tokens) -> int:
    return sum(map(len, tokens.values()))
