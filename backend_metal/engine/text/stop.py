"""Stop strings in a stream of text: found across any borders, never leaked."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Ends a stream at the first character that completes a stop string.

    When several end there, the one that starts first wins. Each stop string is followed by its
    Knuth-Morris-Pratt automaton, so a character costs amortised constant time.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self.hit: str | None = None
        # Longest first: the first automaton that completes is the match that starts first.
        self._automata = [_Automaton(text) for text in sorted(stop, key=len, reverse=True)]
        self._held = ""

    def feed(self, text: str) -> str:
        """Text that is safe to send: no part of it can belong to a stop string."""
        if not self._automata:
            return text
        if self.hit is not None:
            return ""
        seen = self._held + text
        for end in range(len(self._held), len(seen)):
            completed = [a for a in self._automata if a.advance(seen[end])]
            if completed:
                self.hit, self._held = completed[0].pattern, ""
                return seen[: end + 1 - len(self.hit)]
        safe = len(seen) - max(automaton.matched for automaton in self._automata)
        self._held = seen[safe:]
        return seen[:safe]

    def flush(self) -> str:
        """What was held back, when no more text will come."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """The length of the longest suffix of the stream that begins ``pattern``."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched = 0
        self._fallback = [0] * len(pattern)
        length = 0
        for i in range(1, len(pattern)):
            while length and pattern[i] != pattern[length]:
                length = self._fallback[length - 1]
            length += pattern[i] == pattern[length]
            self._fallback[i] = length

    def advance(self, character: str) -> bool:
        """Whether ``character`` completes the pattern; nothing may follow when it does."""
        while self.matched and self.pattern[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        self.matched += self.pattern[self.matched] == character
        return self.matched == len(self.pattern)
