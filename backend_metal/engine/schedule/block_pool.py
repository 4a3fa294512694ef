"""Who holds which KV cache block, and which blocks still hold something worth finding again."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable


class BlockPool:
    """Reference counts, a free queue and the prefix cache over a fixed number of blocks.

    A block is free when nobody holds it. A free block may still be cached: it is found by its hash
    until it is handed out again. Free blocks are handed out least recently used first, those
    without a hash before any that has one, and those that are spent before the other cached ones.

    Only full, computed blocks are cached, and only cached ones are shared, so nobody writes a block
    that somebody else reads.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_kv_blocks must be at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._spare: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        """Free, and handed out before any of ``_kept``."""
        self._kept: OrderedDict[int, None] = OrderedDict()
        """Free, and cached when they came here."""
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._evicted: OrderedDict[bytes, None] = OrderedDict()
        """The latest hashes that were forgotten, as many as there are blocks."""
        self.num_gains = 0
        """Blocks freed or cached so far. Who lacks ``n`` blocks waits for about ``n`` more of them,
        and has seen as many once every holder is gone."""

    @property
    def num_free(self) -> int:
        return len(self._spare) + len(self._kept)

    @property
    def num_kept(self) -> int:
        """Free and cached, and likely to be looked for."""
        return len(self._kept)

    @property
    def num_cached(self) -> int:
        return len(self._hash_of)

    def allocate(self) -> int:
        """Take the free block that is worth least. Raises ``IndexError`` when none is free."""
        free = self._spare or self._kept
        if not free:
            raise IndexError(f"all {self.num_blocks} blocks are held")
        block, _ = free.popitem(last=False)
        self._forget(block)
        self._ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a holder to a block that is held, or free and cached."""
        if self._ref_counts[block] == 0:
            del (self._kept if block in self._kept else self._spare)[block]
        self._ref_counts[block] += 1

    def release(self, blocks: Iterable[int], *, are_spent: bool = False) -> None:
        """Drop one holder of each block, given in sequence order.

        The end of a prefix is of no use without its beginning, so the last block is freed, and
        later evicted, first. ``are_spent``: none of them is likely to be looked for.
        """
        for block in reversed(list(blocks)):
            if self._ref_counts[block] < 1:
                raise ValueError(f"block {block} is released, but nobody holds it")
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self.num_gains += 1
                if block not in self._hash_of:
                    self._spare[block] = None
                    self._spare.move_to_end(block, last=False)
                elif are_spent:
                    self._spare[block] = None
                else:
                    self._kept[block] = None

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
        """Make a full, computed block findable; the first of two equal blocks is kept, unless that
        is spent."""
        known = self._block_of.get(content_hash)
        if known is not None and known in self._spare:
            self.forget(content_hash)
            known = None
        if known is None and block not in self._hash_of:
            self._hash_of[block] = content_hash
            self._block_of[content_hash] = block
            self._evicted.pop(content_hash, None)
            self.num_gains += 1

    def touch(self, content_hashes: Iterable[bytes]) -> None:
        """Those that are found, in sequence order, are the latest to be used."""
        blocks = [block for one in content_hashes if (block := self.find(one)) is not None]
        for block in blocks:
            self.share(block)
        self.release(blocks)

    def forget(self, content_hash: bytes) -> None:
        """Find it no longer; whoever holds its block keeps that."""
        block = self._block_of.get(content_hash)
        if block is not None:
            self._forget(block)
            if self.is_free(block):
                self._kept.pop(block, None)
                self._spare[block] = None
                self._spare.move_to_end(block, last=False)

    def clear_cache(self) -> None:
        """Forget every hash; held blocks stay held."""
        for block in list(self._hash_of):
            self._forget(block)
        self._spare.update(self._kept)
        self._kept.clear()

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
            free = (block in self._spare) + (block in self._kept)
            assert (count == 0) == free, f"block {block}: {count} references, {free} times free"
        assert len(self._hash_of) == len(self._block_of), "a hash without a block"
        for block, content_hash in self._hash_of.items():
            assert self._block_of[content_hash] == block, f"block {block} is cached under two names"
