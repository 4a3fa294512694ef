"""What the matchers of a step do at once: their work is native, and needs none of Python's lock."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property

from llguidance import LLExecutor
from llguidance.numpy import consume_token_par, fill_next_token_bitmask_par

from backend_metal.engine.grammar.matcher import GrammarMatcher
from backend_metal.engine.grammar.words import Ints

MOST_THREADS = 16
"""A step has some hundred matchers at most, and each takes microseconds."""


class MatcherPool:
    """Threads for matchers. A matcher must not come twice in a call."""

    def __init__(self, num_threads: int | None = None) -> None:
        """``num_threads``: None: as many as the machine has processors, but for one."""
        self._num_threads = num_threads or min(max(1, (os.cpu_count() or 1) - 1), MOST_THREADS)

    def take(self, drawn: Sequence[tuple[GrammarMatcher, int]]) -> None:
        """Have each matcher take the token that was drawn for it. ``advance`` is next, with the
        same token, and tells of those that could not."""
        if self._num_threads == 1 or len(drawn) == 1:
            # No other thread would be faster than ``advance``.
            return
        if drawn:
            pairs = [(matcher.native, token_id) for matcher, token_id in drawn]
            all_taken = consume_token_par(self._executor, pairs)
            for (matcher, token_id), is_taken in zip(drawn, all_taken, strict=True):
                matcher.has_taken(token_id, is_taken=is_taken)

    def fill(self, matchers: Sequence[tuple[GrammarMatcher, int]], words: Ints) -> None:
        """Fill the row of ``words`` beside each matcher: a bit for each token that may come next,
        from the lowest. A matcher that fails at it allows the ends alone."""
        if matchers:
            pairs = [(matcher.native, row) for matcher, row in matchers]
            fill_next_token_bitmask_par(self._executor, pairs, words)

    @cached_property
    def _executor(self) -> LLExecutor:
        return LLExecutor(self._num_threads)
