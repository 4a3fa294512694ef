"""A replica's last word on an attempt: what it used, whether its gateway read of it or not.

A gateway that leaves an answer before its end asks for it. Nothing that such an attempt was working
on goes unaccounted for, wherever it was on its way.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

ATTEMPTS_PATH = "/attempts"


@dataclass(frozen=True)
class LastWord:
    """Tokens of the whole answer, with those that earlier attempts at it had generated."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, body: bytes) -> Self:
        return cls(**json.loads(body))
