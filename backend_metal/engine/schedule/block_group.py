"""The blocks of those layers that see the same tokens: all before a token, or a window of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.engine.schedule.block_table import BlockTable


def most_blocks_held(window: int, block_size: int) -> int:
    """Blocks that a sequence needs to go on by a block at least, wherever it is: those with the
    ``window - 1`` tokens before the next one, which may begin inside a block, and those that the
    next tokens are written to."""
    return -(-(window - 1) // block_size) + 2


class BlockGroup:
    """A pool of blocks, and which of its blocks a sequence needs where.

    With a window a sequence gives up what lies behind it and, however long it gets, holds
    ``most_held`` blocks; while a prompt is computed, as many more as its chunk takes.
    """

    def __init__(self, pool: BlockPool, block_size: int, window: int | None = None) -> None:
        self.pool = pool
        self.block_size = block_size
        self.window = window
        self.most_held = None if window is None else most_blocks_held(window, block_size)

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that the pool can hold."""
        if self.most_held is not None and self.pool.num_blocks >= self.most_held:
            return sys.maxsize
        return self.pool.num_blocks * self.block_size

    def first_block(self, position: int) -> int:
        """The first of a sequence's blocks that the token at ``position``, or any behind it,
        sees."""
        if self.window is None:
            return 0
        return max(0, position - self.window + 1) // self.block_size

    def wanted_end(self, first: int, num_tokens: int) -> int:
        """Up to which of its blocks a sequence of so many tokens is to hold those from ``first`` on
        before a step."""
        end = -(-num_tokens // self.block_size)
        return end if self.most_held is None else min(end, first + self.most_held)

    def num_lacking(self, table: BlockTable, num_tokens: int) -> int:
        """Blocks that a sequence of so many tokens lacks."""
        return max(0, self.wanted_end(table.first, num_tokens) - table.end)

    def reserve(self, table: BlockTable, num_blocks: int) -> None:
        for _ in range(num_blocks):
            table.append(self.pool.allocate())

    def pass_by(self, table: BlockTable, num_computed_tokens: int, borders: Iterable[int]) -> None:
        """Give up what no token behind those that are computed sees. What lies in the window before
        one of ``borders``, each a number of blocks, is likely to be looked for again: prompts end
        or part there."""
        num_passed = self.first_block(num_computed_tokens) - table.first
        if num_passed <= 0:
            return
        tails = [range(self.first_block(end * self.block_size), end) for end in borders]
        kept: list[int] = []
        spent: list[int] = []
        for number, block in enumerate(table.view()[:num_passed].tolist(), table.first):
            (kept if any(number in tail for tail in tails) else spent).append(block)
        self.pool.release(kept)
        self.pool.release(spent, are_spent=True)
        table.drop_first(num_passed)

    def last_missing(self, hashes: Sequence[bytes], end: int) -> int | None:
        """Of the blocks that the first token behind block ``end`` sees, the last one that is not
        cached."""
        first = self.first_block(end * self.block_size)
        for number in range(end - 1, first - 1, -1):
            if self.pool.find(hashes[number]) is None:
                return number
        return None

    def check_integrity(self, tables: Iterable[tuple[BlockTable, int]]) -> None:
        """Raises ``AssertionError`` unless all that is held is in ``tables``, each with how many of
        its sequence's tokens are computed."""
        tables = list(tables)
        self.pool.check_integrity(table.view().tolist() for table, _ in tables)
        for table, num_computed in tables:
            assert table.first == self.first_block(num_computed), "blocks behind the window"
            assert num_computed <= table.end * self.block_size, "computed tokens without a block"
            first_written = num_computed // self.block_size - table.first
            for block in table.view()[first_written:].tolist():
                assert self.pool.is_writable(block), f"block {block} is shared, and to be written"
