"""The input of a custom tool's call: text, which models write as the argument of a function."""

from __future__ import annotations

import json
import re

_BEFORE = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# Whole characters and escapes of a JSON string, without half of a surrogate pair at the end.
_CERTAIN = re.compile(
    r'(?:[^"\\]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u])*"
)


class CustomInput:
    """Reads ``{"input": "..."}`` as it comes."""

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
        certain = _CERTAIN.match(self._unread)
        assert certain is not None
        self._unread = self._unread[certain.end() :]
        text: str = json.loads(f'"{certain[0]}"', strict=False)
        return text
