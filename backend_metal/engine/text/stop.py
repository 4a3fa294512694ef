"""Stop strings in a stream of text: found across any borders, never leaked."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Ends a stream at the first character that completes a stop string.

    When several end there, the one that starts first wins. The longest end of the text that may
    begin a stop string is held back.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self.hit: str | None = None
        self._stop = tuple(stop)
        self._held = ""

    def feed(self, text: str) -> str:
        """Text that is safe to send: no part of it can belong to a stop string."""
        if self.hit is not None:
            return ""
        seen = self._held + text
        starts = ((seen.find(stop), stop) for stop in self._stop)
        found = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
        if found:
            _, safe, self.hit = min(found)
            self._held = ""
        else:
            safe = min((_possible_start(seen, stop) for stop in self._stop), default=len(seen))
            self._held = seen[safe:]
        return seen[:safe]

    def flush(self) -> str:
        """What was held back, when no more text will come."""
        held, self._held = self._held, ""
        return held


def _possible_start(seen: str, stop: str) -> int:
    """Where the longest end of ``seen`` begins that ``stop`` may continue; its length if none."""
    start = max(0, len(seen) - len(stop) + 1)
    while (start := seen.find(stop[0], start)) >= 0:
        if stop.startswith(seen[start:]):
            return start
        start += 1
    return len(seen)
