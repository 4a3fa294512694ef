"""Groups of blocks for tests: one that sees all tokens, and others that see a window of them."""

from __future__ import annotations

from collections.abc import Mapping

from backend_metal.engine.schedule.block_group import BlockGroup
from backend_metal.engine.schedule.block_pool import BlockPool

BLOCK_SIZE = 8


def make_groups(
    num_blocks: int,
    windows: Mapping[int, int] | None = None,
    pool: type[BlockPool] = BlockPool,
) -> tuple[BlockGroup, ...]:
    """``windows``: how many blocks there are for each window. With no ``num_blocks`` nothing sees
    all tokens."""
    whole = [BlockGroup(pool(num_blocks), BLOCK_SIZE)] if num_blocks else []
    return *whole, *(
        BlockGroup(pool(own_blocks), BLOCK_SIZE, window)
        for window, own_blocks in (windows or {}).items()
    )
