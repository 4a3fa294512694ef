"""Where a JSON value ends, as its text comes in."""

from __future__ import annotations

import json

_OUTSIDE_STRINGS = frozenset('{}[]:," \t\r\n0123456789+-.eEtrufalsn')


class JsonValue:
    """One value; begins at its first character."""

    def __init__(self) -> None:
        self.has_ended = False
        self.is_malformed = False
        """It is over, and not whole."""
        self.num_scanned = 0
        """Characters of it so far."""
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._has_begun = False

    @property
    def is_in_string(self) -> bool:
        return self._in_string and not self.has_ended

    def scan(self, text: str) -> int:
        """How many characters of ``text``, which comes next, belong to the value."""
        length = 0 if self.has_ended or self.is_malformed else self._scan(text)
        self.num_scanned += length
        return length

    def _scan(self, text: str) -> int:
        for index, character in enumerate(text):
            if self._in_string:
                self._scan_string(character)
                if self.has_ended:
                    return index + 1
            elif not self._depth and self._has_begun and character in ",}] \t\r\n":
                # A number or a word ends where something else begins.
                self.has_ended = True
                return index
            elif character not in _OUTSIDE_STRINGS or (character in "}]" and not self._depth):
                self.is_malformed = True
                return index
            else:
                self._scan_structure(character)
                if self.has_ended:
                    return index + 1
        return len(text)

    def _scan_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = False
            self.has_ended = not self._depth

    def _scan_structure(self, character: str) -> None:
        self._has_begun = True
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.has_ended = not self._depth


def decoded(text: str) -> object:
    """What ``text`` means. Raises ``ValueError`` where it is no JSON, such as NaN."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error


def as_string(text: str) -> str:
    """``text`` as JSON; halves of characters are escaped."""
    return json.dumps(text, ensure_ascii=has_halves(text))


def has_halves(text: str) -> bool:
    """Whether there are halves of characters in it, which no encoding has."""
    return any("\ud800" <= one <= "\udfff" for one in text)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
