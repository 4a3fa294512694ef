"""Which blocks a sequence holds in each group: those found in the prefix cache, then its own."""

from __future__ import annotations

from collections.abc import Iterable

from backend_metal.engine.schedule.block_group import BlockGroup
from backend_metal.engine.schedule.block_table import BlockTable
from backend_metal.engine.schedule.prefix_match import PrefixMatch
from backend_metal.engine.schedule.sequence import Sequence


class BlockTables:
    """A sequence that runs has a table for each group; any other has none."""

    def __init__(self, groups: tuple[BlockGroup, ...]) -> None:
        self._groups = groups
        self._block_size = groups[0].block_size
        self.has_windows = any(group.window is not None for group in groups)

    def shortage(self, sequence: Sequence, match: PrefixMatch) -> tuple[int, int] | None:
        """Which group lacks blocks for a sequence that begins with ``match``, and its pool's
        ``num_gains`` before which they can't fit; None: all have enough."""
        for index, (group, found) in enumerate(zip(self._groups, match.blocks, strict=True)):
            first = match.num_blocks - len(found)
            num_free = group.pool.num_free - sum(map(group.pool.is_free, found))
            wanted = group.wanted_end(first, sequence.num_tokens) - match.num_blocks
            if wanted > num_free:
                return index, group.pool.num_gains + wanted - num_free
        return None

    def may_fit(self, sequence: Sequence) -> bool:
        """Whether enough has happened since the sequence found a shortage."""
        index, num_gains = sequence.awaited_gains
        return self._groups[index].pool.num_gains >= num_gains

    def attach_prefix(self, sequence: Sequence, match: PrefixMatch) -> None:
        for group, found in zip(self._groups, match.blocks, strict=True):
            for block in found:
                group.pool.share(block)
            sequence.block_tables.append(BlockTable(found, match.num_blocks - len(found)))
        if match.num_known > match.num_blocks:
            self._touch(sequence, match.num_known)
        sequence.num_computed_tokens = match.num_blocks * self._block_size
        ends = (sequence.num_prompt_tokens - 1, sequence.num_history_tokens)
        sequence.borders = {
            match.num_blocks,
            match.num_known,
            *(n // self._block_size for n in ends),
        }

    def _touch(self, sequence: Sequence, num_blocks: int) -> None:
        """What is to be computed once more of so many first blocks, since other layers have lost
        it, is not to be lost meanwhile where it is not."""
        hashes = sequence.block_hashes(self._block_size)
        for group in self._groups:
            first = group.first_block(num_blocks * self._block_size)
            group.pool.touch(hashes[first:num_blocks])

    def reserve(self, sequences: Iterable[Sequence]) -> bool:
        """Give each of them the blocks that it lacks before a step, or none if they are too few:
        whether they were enough."""
        lacking: list[tuple[BlockGroup, BlockTable, int]] = []
        for index, group in enumerate(self._groups):
            total = 0
            for sequence in sequences:
                table = sequence.block_tables[index]
                if sequence.num_tokens <= table.end * self._block_size:
                    continue
                if num_blocks := group.num_lacking(table, sequence.num_tokens):
                    lacking.append((group, table, num_blocks))
                    total += num_blocks
            if total > group.pool.num_free:
                return False
        for group, table, num_blocks in lacking:
            group.reserve(table, num_blocks)
        return True

    def fit(self, sequence: Sequence, num_tokens: int) -> int:
        """How many of the next tokens, at most so many, have blocks to be written to, with those
        that are free now; at least one, once a step's blocks are reserved."""
        start = sequence.num_computed_tokens
        for group, table in zip(self._groups, sequence.block_tables, strict=True):
            wanted = -(-(start + num_tokens) // self._block_size) - table.end
            group.reserve(table, min(max(0, wanted), group.pool.num_free))
            num_tokens = min(num_tokens, table.end * self._block_size - start)
        return num_tokens

    def computed(self, sequence: Sequence, num_tokens: int) -> None:
        """The next tokens' K/V is in the blocks, for whatever is submitted from now on: those that
        it fills can be found, and those that no token sees any more are given up. The tokens are
        known."""
        first_block = sequence.num_computed_tokens // self._block_size
        sequence.num_computed_tokens += num_tokens
        num_full_blocks = sequence.num_computed_tokens // self._block_size
        if num_full_blocks == first_block and not self.has_windows:
            return
        hashes = sequence.block_hashes(self._block_size)
        for group, table in zip(self._groups, sequence.block_tables, strict=True):
            for number in range(first_block, min(num_full_blocks, len(hashes))):
                group.pool.cache(table[number - table.first], hashes[number])
            if group.window is not None:
                group.pass_by(table, sequence.num_computed_tokens, sequence.borders)

    def free(self, sequence: Sequence) -> None:
        for group, table in zip(self._groups, sequence.block_tables, strict=False):
            group.pool.release(table.view().tolist())
        sequence.block_tables.clear()
        sequence.num_computed_tokens = 0

    def check_integrity(self, holders: Iterable[Sequence]) -> None:
        """Raises ``AssertionError`` unless ``holders`` hold all blocks that are not free."""
        holders = list(holders)
        for sequence in holders:
            assert sequence.num_computed_tokens < sequence.num_tokens
            assert len(sequence.block_tables) == len(self._groups), "a table too many or too few"
        for index, group in enumerate(self._groups):
            group.check_integrity(
                (sequence.block_tables[index], sequence.num_computed_tokens) for sequence in holders
            )
