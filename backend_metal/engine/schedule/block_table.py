"""The blocks that one sequence holds in one group, in the order of its tokens."""

from __future__ import annotations

from collections.abc import Iterable

from backend_metal.engine.schedule.int_buffer import IntBuffer


class BlockTable(IntBuffer):
    def __init__(self, blocks: Iterable[int] = (), first: int = 0) -> None:
        """``first``: which of the sequence's blocks is the first that is held; those before it are
        behind the window, and nobody needs them."""
        super().__init__(blocks)
        self.first = first

    @property
    def end(self) -> int:
        """Which of the sequence's blocks comes behind the last one."""
        return self.first + self.length

    def drop_first(self, count: int) -> None:
        super().drop_first(count)
        self.first += count
