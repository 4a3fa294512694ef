"""Who holds which KV cache block, and which blocks still hold something worth finding again."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable


class BlockPool:
    """Reference counts, a free queue and the prefix cache over a fixed number of blocks.

    A block is free when nobody holds it. A free block may still be cached: it is found by its hash
    until it is handed out again. Free blocks are handed out least recently used first, those
    without a hash before any that has one.

    Only full, computed blocks are cached, and only cached ones are shared, so nobody writes a block
    that somebody else reads.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_kv_blocks must be at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._evicted: OrderedDict[bytes, None] = OrderedDict()
        """The latest hashes that were forgotten, as many as there are blocks."""
        self.num_gains = 0
        """Blocks freed or cached so far. Who lacks ``n`` blocks waits for about ``n`` more of them,
        and has seen as many once every holder is gone."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._hash_of)

    def allocate(self) -> int:
        """Take the free block that is worth least. Raises ``IndexError`` when none is free."""
        if not self._free:
            raise IndexError(f"all {self.num_blocks} blocks are held")
        block, _ = self._free.popitem(last=False)
        self._forget(block)
        self._ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a holder to a block that is held, or free and cached."""
        if self._ref_counts[block] == 0:
            del self._free[block]
        self._ref_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one holder of each block, given in sequence order.

        The end of a prefix is of no use without its beginning, so the last block is freed, and
        later evicted, first.
        """
        for block in reversed(list(blocks)):
            if self._ref_counts[block] < 1:
                raise ValueError(f"block {block} is released, but nobody holds it")
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None
                self.num_gains += 1
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)

    def is_free(self, block: int) -> bool:
        return self._ref_counts[block] == 0

    def is_writable(self, block: int) -> bool:
        return self._ref_counts[block] == 1 and block not in self._hash_of

    def find(self, content_hash: bytes) -> int | None:
        return self._block_of.get(content_hash)

    def was_evicted(self, content_hash: bytes) -> bool:
        """Whether it could be found of late, but no longer."""
        return content_hash in self._evicted

    def cache(self, block: int, content_hash: bytes) -> None:
        """Make a full, computed block findable; the first of two equal blocks is kept."""
        if content_hash not in self._block_of and block not in self._hash_of:
            self._hash_of[block] = content_hash
            self._block_of[content_hash] = block
            self._evicted.pop(content_hash, None)
            self.num_gains += 1

    def clear_cache(self) -> None:
        """Forget every hash; held blocks stay held."""
        for block in list(self._hash_of):
            self._forget(block)

    def _forget(self, block: int) -> None:
        content_hash = self._hash_of.pop(block, None)
        if content_hash is not None:
            del self._block_of[content_hash]
            self._evicted[content_hash] = None
            if len(self._evicted) > self.num_blocks:
                self._evicted.popitem(last=False)

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Raises ``AssertionError`` unless the holders are exactly ``tables``."""
        held = Counter(block for table in tables for block in table)
        for block, count in enumerate(self._ref_counts):
            assert count == held[block], f"block {block}: {count} references, {held[block]} holders"
            assert (count == 0) == (block in self._free), f"block {block}: {count} references, free"
        assert len(self._hash_of) == len(self._block_of), "a hash without a block"
        for block, content_hash in self._hash_of.items():
            assert self._block_of[content_hash] == block, f"block {block} is cached under two names"
