"""The input of a custom tool's call: text, which models write as the argument of a function."""

from __future__ import annotations

import json
import re

_BEFORE = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PIECES = re.compile(r'[^"\\]+|\\u[0-9a-fA-F]{4}|\\[^u]')
"""Of a JSON string."""
_HALF = re.compile(r"\\u[dD][89abAB]..")
"""Of a pair of surrogates, the first one."""


class CustomInput:
    """Reads ``{"input": "..."}`` as it comes. What has another form is the input as it is."""

    def __init__(self) -> None:
        self._unread = ""
        self._has_begun = False

    def feed(self, arguments: str) -> str:
        """What of the input has become certain with more of the ``arguments``."""
        self._unread += arguments
        if not self._has_begun:
            before = _BEFORE.match(self._unread)
            if before is None:
                return ""
            self._has_begun = True
            self._unread = self._unread[before.end() :]
        return self._take()

    def finish(self) -> str:
        """What is left when no more comes. Call it once."""
        return "" if self._has_begun else self._unread

    def _take(self) -> str:
        end, last = 0, ""
        while piece := _PIECES.match(self._unread, end):
            end, last = piece.end(), piece[0]
        if _HALF.fullmatch(last):
            end -= len(last)
        certain, self._unread = self._unread[:end], self._unread[end:]
        text: str = json.loads(f'"{certain}"', strict=False)
        # Half of a pair is no character.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
