"""Numbers that keep the text that they were written as: a history is to be rendered as it was."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any


class Written(float):
    """A number, told as the text that it came as."""

    text: str

    def __new__(cls, text: str) -> Written:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[Written], tuple[str]]:
        return Written, (self.text,)


def read_number(text: str) -> float:
    """For decoders of JSON."""
    number = float(text)
    return number if repr(number) == text else Written(text)


def dumps(value: Any, **options: Any) -> str:
    """As ``json.dumps``, with the text of numbers that have one, which it has no way to say."""
    marks: dict[str, str] = {}
    text = json.dumps(_marked(value, marks), **options)
    return re.sub("|".join(marks), lambda mark: marks[mark[0]], text) if marks else text


def _marked(value: Any, marks: dict[str, str]) -> Any:
    """With a number of its own, which no text has by chance, for each."""
    if isinstance(value, Written):
        mark = secrets.randbits(128) | 1 << 128
        marks[str(mark)] = value.text
        return mark
    if isinstance(value, dict):
        return {name: _marked(one, marks) for name, one in value.items()}
    return [_marked(one, marks) for one in value] if isinstance(value, (list, tuple)) else value
