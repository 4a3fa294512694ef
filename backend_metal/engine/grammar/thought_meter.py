"""How many tokens of an answer are thoughts, and whether these have been enough."""

from __future__ import annotations

from backend_metal.engine.grammar.utf8 import MOST_BYTES_TO_COME, is_cut
from deployments.backend import Thoughts


class ThoughtMeter:
    """Reads an answer's bytes token by token. A token counts if any of it is thought: the markers
    around are none. One without bytes of its own counts where a thought has begun.

    One that stands across tokens is found, too; until it has come whole its beginning counts.
    """

    def __init__(self, thoughts: Thoughts, *, has_begun: bool) -> None:
        """``has_begun``: the prompt ends in a thought."""
        self._start = thoughts.start.encode()
        self._end = thoughts.end.encode()
        self._closers = [text.encode() for text in thoughts.before]
        self._ends = [self._end, *(self._closers if thoughts.ended_by_calls else [])]
        self._budget = thoughts.budget
        self.is_inside = has_begun
        self._is_over = False
        """No thought may begin any more."""
        self._tail = b""
        """The latest bytes, in which a marker may have begun."""
        self._begin: list[int] = []
        """Where in ``_tail`` each of the tokens begins that have no byte before it; only inside."""
        self.num_tokens = 0
        self._keep = max(map(len, (self._start, self._end, *self._closers))) - 1

    @property
    def is_due(self) -> bool:
        """Whether the thought is to end here: it has had its tokens, and no character is cut."""
        if self._budget is None or not self.is_inside:
            return False
        beyond = self.num_tokens - self._budget
        return beyond >= MOST_BYTES_TO_COME or (beyond >= 0 and not is_cut(self._tail))

    def push(self, token: bytes) -> None:
        """The next token's bytes."""
        if self._is_over:
            return
        if self.is_inside and token:
            self._count(len(self._tail))
        elif self.is_inside:
            self.num_tokens += 1
        self._tail += token
        while self._turns():
            pass
        dropped = max(0, len(self._tail) - self._keep)
        self._tail = self._tail[dropped:]
        self._begin = [at - dropped for at in self._begin if at >= dropped]

    def _count(self, at: int) -> None:
        self.num_tokens += 1
        self._begin.append(at)

    def _turns(self) -> bool:
        """Whether a marker stands in the tail: then what follows it is left there."""
        marker = self._first_marker()
        if marker is None or (at := self._tail.find(marker)) < 0:
            return False
        self._tail = self._tail[at + len(marker) :]
        if self.is_inside:
            self.num_tokens -= sum(begin >= at for begin in self._begin)
            self._begin.clear()
            self.is_inside = False
            self._is_over = marker != self._end
        elif marker == self._start:
            self.is_inside = True
            if self._tail:
                self._count(0)
        else:
            self._is_over = True
            return False
        return True

    def _first_marker(self) -> bytes | None:
        markers = self._ends if self.is_inside else (self._start, *self._closers)
        found = [(at, m) for m in markers if (at := self._tail.find(m)) >= 0]
        return min(found)[1] if found else None
