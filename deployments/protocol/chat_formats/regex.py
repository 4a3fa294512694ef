"""Regular expressions between slashes, as Lark has them."""

from __future__ import annotations

import re


def escaped(text: str) -> str:
    """Of this text alone."""
    # `re` leaves line ends as they are behind a backslash, where a rule would end.
    return re.escape(text).replace("/", "\\/").replace("\n", "n").replace("\r", "r")


def without(marker: str) -> str:
    """Of all texts that ``marker``, which is not empty, does not stand in.

    It spells out the automaton of Knuth, Morris and Pratt, "Fast pattern matching in strings"
    (1977). A lexer of derivatives sees through that: where no marker has begun, it knows of most
    tokens at once that they may come, and need not try each as with a complement.
    """
    # From the longest beginning of the marker to the shortest: how the text goes on behind it to
    # each shorter one that it falls back to, and how it may end before that.
    falls: dict[int, str] = {}
    tail = ""
    for length in reversed(range(len(marker))):
        targets = _targets(marker, length)
        ways = {target: [_one_of(characters)] for target, characters in targets.items()}
        ways.setdefault(0, []).append(_none_of("".join(targets.values()) + marker[length]))
        if length + 1 < len(marker):
            goes_on = escaped(marker[length])
            for target, way in falls.items():
                ways.setdefault(target, []).append(goes_on + way)
            tail = f"({goes_on}{tail})?"
        falls = {target: _any_of(some) for target, some in ways.items()}
        if loop := falls.pop(length, ""):
            falls = {target: f"({loop})*{way}" for target, way in falls.items()}
            tail = f"({loop})*{tail}"
    return tail


def _targets(marker: str, length: int) -> dict[int, str]:
    """Characters behind the marker's first ``length``, by how many of its first stand at the end
    then, where these are any, and not one more."""
    targets: dict[int, str] = {}
    for character in sorted(set(marker) - {marker[length]}):
        text = marker[:length] + character
        target = next(n for n in range(length, -1, -1) if text.endswith(marker[:n]))
        if target:
            targets[target] = targets.get(target, "") + character
    return targets


def _one_of(characters: str) -> str:
    return f"[{''.join(map(escaped, characters))}]"


def _none_of(characters: str) -> str:
    return f"[^{''.join(map(escaped, characters))}]"


def _any_of(ways: list[str]) -> str:
    return ways[0] if len(ways) == 1 else f"({'|'.join(ways)})"
