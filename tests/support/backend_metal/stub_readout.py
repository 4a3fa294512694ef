"""A readout for the stub model, which checks that it is told of each token that counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.backend_metal.stub_runner import content_chain


class StubReadout:
    reads_logits = False

    def __init__(self, *, is_of_last_token: bool) -> None:
        self.is_of_last_token = is_of_last_token
        self._seen: list[int] = []
        self._start = 0

    def add(self, rows: Any, start: int) -> None:
        if self.is_of_last_token or start == 0:
            self._seen, self._start = [], start
        assert start == self._start + len(self._seen), "tokens were left out"
        self._seen += rows.tolist()

    @property
    def arrays(self) -> list[Any]:
        return []

    def values(self) -> Any:
        return np.array(self._seen, np.float32)

    def has_read(self, prompt: list[int]) -> bool:
        """Whether it has what ``prompt`` comes to."""
        wanted = content_chain(np.array(prompt)).tolist()
        return self._start + len(self._seen) == len(prompt) and self._seen == wanted[self._start :]
