import pytest

from backend_metal.engine.schedule.block_pool import BlockPool


def test_blocks_without_a_hash_are_handed_out_before_cached_ones() -> None:
    pool = BlockPool(3)
    cached, plain, last = pool.allocate(), pool.allocate(), pool.allocate()
    pool.cache(cached, b"content")
    pool.release([cached])
    pool.release([plain])
    pool.release([last])
    assert {pool.allocate(), pool.allocate()} == {plain, last}
    assert pool.find(b"content") == cached
    assert pool.allocate() == cached
    assert pool.find(b"content") is None


def test_cached_blocks_are_evicted_least_recently_used_first() -> None:
    pool = BlockPool(3)
    blocks = [pool.allocate() for _ in range(3)]
    for block in blocks:
        pool.cache(block, bytes([block]))
        pool.release([block])
    pool.share(blocks[0])
    pool.release([blocks[0]])
    assert [pool.allocate() for _ in range(3)] == [blocks[1], blocks[2], blocks[0]]


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(3)
    blocks = [pool.allocate() for _ in range(3)]
    for block in blocks:
        pool.cache(block, bytes([block]))
    pool.release(blocks)
    assert [pool.allocate() for _ in range(3)] == blocks[::-1]


def test_a_block_is_writable_only_by_a_single_holder_and_before_it_is_cached() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    assert pool.is_writable(block)
    pool.share(block)
    assert not pool.is_writable(block)
    pool.release([block])
    assert pool.is_writable(block)
    pool.cache(block, b"content")
    assert not pool.is_writable(block)


def test_of_two_equal_blocks_the_first_is_found() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.cache(first, b"content")
    pool.cache(second, b"content")
    assert pool.find(b"content") == first
    assert pool.num_cached == 1
    pool.check_integrity([[first], [second]])


def test_misuse_is_refused() -> None:
    pool = BlockPool(1)
    block = pool.allocate()
    with pytest.raises(IndexError, match="all 1 blocks are held"):
        pool.allocate()
    pool.release([block])
    with pytest.raises(ValueError, match=f"block {block} is released, but nobody holds it"):
        pool.release([block])
    with pytest.raises(ValueError, match="num_kv_blocks must be at least 1"):
        BlockPool(0)


def test_integrity_names_the_block_that_leaked() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    with pytest.raises(AssertionError, match=f"block {block}: 1 references, 0 holders"):
        pool.check_integrity([])
