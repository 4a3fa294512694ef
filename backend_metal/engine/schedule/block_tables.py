"""Which blocks a sequence holds: those found in the prefix cache, then its own."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.engine.schedule.sequence import Sequence
from deployments.backend import PrefixMiss


class BlockTables:
    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size

    def find_prefix(self, sequence: Sequence) -> list[int]:
        """The cached blocks that hold the sequence's first tokens.

        They end short of the newest token, which is run in any case, since its logits are wanted;
        so a shared block is never written; and before any other whose logits are to be read.
        """
        blocks = []
        most_tokens = sequence.num_tokens - 1
        if sequence.readings is not None and sequence.reads_prompt:
            most_tokens = sequence.readings.next_row
        most_blocks = most_tokens // self._block_size
        for content_hash in islice(sequence.block_hashes(self._block_size), most_blocks):
            block = self._pool.find(content_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def why_no_more(self, sequence: Sequence, found: list[int]) -> PrefixMiss | None:
        """Why no more of the tokens than the blocks ``found`` were cached; None: no more could be,
        or nobody may share them."""
        hashes = sequence.block_hashes(self._block_size)[: len(found) + 1]
        if len(hashes) <= len(found) or len(found) == (sequence.num_tokens - 1) // self._block_size:
            return None
        if self._pool.was_evicted(hashes[-1]):
            return "evicted"
        return "diverged" if found else "new"

    def attach_prefix(self, sequence: Sequence, blocks: list[int]) -> None:
        for block in blocks:
            self._pool.share(block)
            sequence.block_table.append(block)
        sequence.num_computed_tokens = len(blocks) * self._block_size

    def num_missing(self, sequence: Sequence, found: list[int]) -> int:
        """Blocks that the pool lacks for all tokens of a sequence that begins with ``found``."""
        num_free = self._pool.num_free - sum(map(self._pool.is_free, found))
        return max(0, self._num_blocks(sequence.num_tokens) - len(found) - num_free)

    def num_lacking(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that the sequence lacks for its next tokens."""
        wanted = self._num_blocks(sequence.num_computed_tokens + num_tokens)
        return max(0, wanted - len(sequence.block_table))

    def reserve(self, sequence: Sequence, num_tokens: int) -> None:
        for _ in range(self.num_lacking(sequence, num_tokens)):
            sequence.block_table.append(self._pool.allocate())

    def computed(self, sequence: Sequence, num_tokens: int) -> None:
        """The next tokens' K/V is in the blocks: those that it fills can be found from now on."""
        first_block = sequence.num_computed_tokens // self._block_size
        sequence.num_computed_tokens += num_tokens
        num_full_blocks = sequence.num_computed_tokens // self._block_size
        hashes = sequence.block_hashes(self._block_size)
        for block in range(first_block, min(num_full_blocks, len(hashes))):
            self._pool.cache(sequence.block_table[block], hashes[block])

    def free(self, sequence: Sequence) -> None:
        self._pool.release(sequence.block_table.view().tolist())
        sequence.block_table.clear()
        sequence.num_computed_tokens = 0

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def check_integrity(self, holders: Iterable[Sequence]) -> None:
        """Raises ``AssertionError`` unless ``holders`` hold all blocks that are not free."""
        holders = list(holders)
        self._pool.check_integrity(sequence.block_table.view().tolist() for sequence in holders)
        for sequence in holders:
            covered = len(sequence.block_table) * self._block_size
            assert sequence.num_computed_tokens < sequence.num_tokens
            assert sequence.num_computed_tokens <= covered, "computed tokens without a block"
            first_written = sequence.num_computed_tokens // self._block_size
            for block in sequence.block_table.view()[first_written:].tolist():
                assert self._pool.is_writable(block), f"block {block} is shared, and to be written"
