"""Stop strings in a stream of text: found across any borders, never leaked."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Ends a stream at the first character that completes a stop string.

    When several end there, the one that starts first wins. The longest end of the text that may
    begin a stop string is held back. Where each of them may begin only moves on, so that a
    character costs as little whatever they are.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self.hit: str | None = None
        self._stop = tuple(stop)
        self._starts = [0] * len(stop)
        """In what is held back, the first place where each stop string may begin."""
        self._held = ""

    def feed(self, text: str) -> str:
        """Text that is safe to send: no part of it can belong to a stop string."""
        if self.hit is not None:
            return ""
        seen = self._held + text
        stops = zip(self._stop, self._starts, strict=True)
        self._starts = [_possible_start(stop, start, seen) for stop, start in stops]
        stops = zip(self._stop, self._starts, strict=True)
        ends = ((start + len(stop), start, stop) for stop, start in stops)
        if found := [end for end in ends if end[0] <= len(seen)]:
            _, safe, self.hit = min(found)
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
