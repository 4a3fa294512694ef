"""A clock that tests turn."""

from __future__ import annotations


class Clock:
    def __init__(self, time: float = 100.0) -> None:
        self.time = time

    def __call__(self) -> float:
        return self.time
