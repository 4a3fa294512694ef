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


def test_a_touched_block_is_evicted_last_even_if_it_was_spent() -> None:
    pool = BlockPool(4)
    blocks = [pool.allocate() for _ in range(4)]
    names = [bytes([block]) for block in blocks]
    for block, name in zip(blocks, names, strict=True):
        pool.cache(block, name)
    pool.release(blocks[:1], are_spent=True)
    pool.release(blocks[1:3])
    pool.touch([names[0], b"unknown", names[2], names[3]])
    pool.check_integrity([blocks[3:]])
    pool.release(blocks[3:])
    assert [pool.allocate() for _ in range(4)] == [blocks[1], blocks[2], blocks[0], blocks[3]]


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(3)
    blocks = [pool.allocate() for _ in range(3)]
    for block in blocks:
        pool.cache(block, bytes([block]))
    pool.release(blocks)
    assert [pool.allocate() for _ in range(3)] == blocks[::-1]


def test_spent_blocks_are_evicted_before_other_cached_ones_the_oldest_first() -> None:
    pool = BlockPool(5)
    blocks = [pool.allocate() for _ in range(5)]
    for block in blocks[:4]:
        pool.cache(block, bytes([block]))
    pool.release(blocks[:1])
    pool.release(blocks[1:2], are_spent=True)
    pool.release(blocks[2:3], are_spent=True)
    pool.release(blocks[3:])
    pool.check_integrity([])
    assert [pool.find(bytes([block])) for block in blocks[:4]] == blocks[:4]
    pool.share(blocks[1])
    pool.release([blocks[1]])
    order = [blocks[4], blocks[2], blocks[0], blocks[3], blocks[1]]
    assert [pool.allocate() for _ in range(5)] == order


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


def test_of_two_equal_blocks_a_spent_one_is_not_found() -> None:
    pool = BlockPool(3)
    spent, second, third = (pool.allocate() for _ in range(3))
    pool.cache(spent, b"content")
    pool.release([spent], are_spent=True)
    pool.cache(second, b"content")
    assert pool.find(b"content") == second
    assert not pool.was_evicted(b"content")
    pool.cache(third, b"content")
    assert pool.find(b"content") == second
    assert pool.num_cached == 1
    pool.check_integrity([[second], [third]])


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


def test_a_block_whose_content_is_forgotten_is_handed_out_first() -> None:
    pool = BlockPool(3)
    blocks = [pool.allocate() for _ in range(3)]
    for block in blocks:
        pool.cache(block, bytes([block]))
    pool.release(blocks[:2])
    for block in (blocks[0], blocks[2]):
        pool.forget(bytes([block]))
        assert pool.find(bytes([block])) is None
    pool.forget(b"unknown")
    assert pool.allocate() == blocks[0]
    pool.check_integrity([[blocks[0]], [blocks[2]]])
