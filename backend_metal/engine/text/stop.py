"""Stop strings in a stream of text: found across any borders, never leaked."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Ends a stream at the first character that completes a stop string.

    When several end there, the one that starts first wins. The longest end of the text that may
    begin a stop string is held back. Where each of them may begin only moves on, so that a
    character costs as little whatever they are.
    """

    def __init__(self, stop: Sequence[str], *, include: bool = False) -> None:
        """``include``: what is hit is part of the text."""
        self.hit: str | None = None
        self._include = include
        self._stop = tuple(stop)
        self._starts = [0] * len(stop)
        """In what is held back, the first place where each stop string may begin."""
        self._held = ""

    def feed(self, text: str, *, may_hit: bool = True) -> str:
        """Text that is safe to send: no part of it can belong to a stop string. Without ``may_hit``
        none ends in it."""
        if not self._stop:
            return text
        if self.hit is not None:
            return ""
        seen = self._held + text
        stops = zip(self._stop, self._starts, strict=True)
        find = _possible_start if may_hit else _unfinished_start
        self._starts = [find(stop, start, seen) for stop, start in stops]
        stops = zip(self._stop, self._starts, strict=True)
        ends = ((start + len(stop), start, stop) for stop, start in stops)
        if found := [end for end in ends if end[0] <= len(seen)]:
            end, start, self.hit = min(found)
            safe = end if self._include else start
            self._held = ""
        else:
            safe = min(self._starts, default=len(seen))
            self._held = seen[safe:]
            self._starts = [start - safe for start in self._starts]
        return seen[:safe]

    def flush(self) -> str:
        """What was held back, when no more text will come."""
        held, self._held = self._held, ""
        return held


def _possible_start(stop: str, start: int, seen: str) -> int:
    """From ``start`` on, where ``stop`` stands in ``seen``, or where the longest end of ``seen``
    begins that ``stop`` may continue; the length of ``seen`` if there is no such place."""
    while (start := seen.find(stop[0], start)) >= 0:
        if stop.startswith(seen[start : start + len(stop)]):
            return start
        start += 1
    return len(seen)


def _unfinished_start(stop: str, start: int, seen: str) -> int:
    """As ``_possible_start``, of those places where ``seen`` ends before ``stop`` does."""
    while (start := _possible_start(stop, start, seen)) + len(stop) <= len(seen):
        start += 1
    return start
