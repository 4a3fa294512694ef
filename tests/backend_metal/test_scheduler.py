from collections.abc import Iterable

import pytest

from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.engine.schedule.sequence import Status
from tests.support.backend_metal.scheduler_harness import BLOCK_SIZE, Harness, output, scheduled
from tests.support.backend_metal.stub_runner import expected_tokens


def test_decodes_and_prefill_chunks_share_a_step_within_the_budget() -> None:
    harness = Harness(max_num_batched_tokens=16)
    short = harness.add(list(range(5)))
    assert scheduled(harness.step()) == [(short, 5)]
    long = harness.add(list(range(10, 50)))
    assert scheduled(harness.step()) == [(short, 1), (long, 15)]
    assert scheduled(harness.step()) == [(short, 1), (long, 15)]
    assert scheduled(harness.step()) == [(short, 1), (long, 10)]
    harness.run()
    assert output(long) == expected_tokens(list(range(10, 50)), 4, 50)


def test_at_most_max_num_seqs_run() -> None:
    harness = Harness(max_num_seqs=2)
    first, second, third = (harness.add([i, i + 1]) for i in range(3))
    harness.step()
    assert harness.scheduler.running == [first, second]
    assert harness.scheduler.waiting == [third]
    harness.run()
    assert output(third) == expected_tokens([2, 3], 4, 50)


def test_lower_priority_numbers_run_first() -> None:
    harness = Harness(max_num_seqs=1)
    late, urgent = harness.add([1], priority=1), harness.add([2], priority=-1)
    harness.step()
    assert harness.scheduler.running == [urgent]
    harness.run()
    assert output(late) == expected_tokens([1], 4, 50)


def test_the_youngest_is_preempted_and_loses_no_token() -> None:
    harness = Harness(num_blocks=6, max_num_batched_tokens=64)
    old, young = harness.add(list(range(20)), max_tokens=20), harness.add([7] * 20, max_tokens=20)
    harness.run()
    assert harness.scheduler.num_preemptions > 0
    assert output(old) == expected_tokens(list(range(20)), 20, 50)
    assert output(young) == expected_tokens([7] * 20, 20, 50)


def test_the_oldest_is_never_preempted() -> None:
    harness = Harness(num_blocks=6, max_num_batched_tokens=64)
    oldest = harness.add(list(range(8)), max_tokens=39)
    for i in range(4):
        harness.add([i] * 9, max_tokens=10)
    harness.step()
    while len(output(oldest)) < 39:
        assert oldest in harness.scheduler.running
        harness.step()
    harness.run()


def test_a_shared_prefix_is_computed_once() -> None:
    harness = Harness()
    prefix = list(range(16))
    harness.add([*prefix, 1, 2])
    harness.run()
    sequence = harness.add([*prefix, 3, 4])
    assert scheduled(harness.step()) == [(sequence, 2)]
    assert sequence.num_cached_tokens == 16
    assert harness.scheduler.num_prefix_hit_tokens == 16
    assert harness.scheduler.num_prefix_query_tokens == 36
    harness.run()
    assert output(sequence) == expected_tokens([*prefix, 3, 4], 4, 50)


def test_a_prompt_that_is_cached_whole_runs_its_last_block_again() -> None:
    harness = Harness()
    prompt = list(range(16))
    first = harness.add(prompt)
    harness.run()
    again = harness.add(prompt)
    assert scheduled(harness.step()) == [(again, BLOCK_SIZE)]
    harness.run()
    assert output(again) == output(first)


@pytest.mark.parametrize("prompt_len", [1, 7, 8, 9, 16, 17, 20])
def test_equal_prompts_share_the_full_blocks_short_of_the_newest_token(prompt_len: int) -> None:
    harness = Harness()
    prompt = list(range(prompt_len))
    first = harness.add(prompt, max_tokens=6)
    harness.step()
    others = [harness.add(prompt, max_tokens=6) for _ in range(3)]
    num_shared = (prompt_len - 1) // BLOCK_SIZE
    own = prompt_len - num_shared * BLOCK_SIZE
    assert scheduled(harness.step()) == [(first, 1), *((other, own) for other in others)]
    held = harness.pool.num_blocks - harness.pool.num_free
    assert held <= num_shared + 4 * 2
    harness.run()
    for sequence in (first, *others):
        assert output(sequence) == expected_tokens(prompt, 6, 50)


class CountingPool(BlockPool):
    """Counts what is asked and changed."""

    calls = 0

    def find(self, content_hash: bytes) -> int | None:
        self.calls += 1
        return super().find(content_hash)

    def share(self, block: int) -> None:
        self.calls += 1
        super().share(block)

    def release(self, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        self.calls += len(blocks)
        super().release(blocks)


def test_a_prompt_that_waits_for_blocks_looks_for_its_prefix_once() -> None:
    harness = Harness(num_blocks=108, max_num_batched_tokens=1024, pool=CountingPool)
    pool = harness.pool
    assert isinstance(pool, CountingPool)
    prompt, longer = [0] * 800, [0] * 800 + [1] * 60
    first = harness.add(prompt, max_tokens=50)
    harness.step()
    waiting = harness.add(longer, max_tokens=2)
    calls = pool.calls
    for _ in range(6):
        harness.step()
        assert waiting.status is Status.WAITING
        assert pool.calls == calls + 101
    harness.run()
    assert output(first) == expected_tokens(prompt, 50, 50)
    assert output(waiting) == expected_tokens(longer, 2, 50)


def test_a_prompt_that_waits_for_blocks_runs_once_enough_of_them_are_cached() -> None:
    harness = Harness(num_blocks=6, max_num_batched_tokens=8)
    prompt = list(range(32))
    first = harness.add(prompt, max_tokens=8)
    harness.step()
    second = harness.add(prompt, max_tokens=8)
    while second.status is Status.WAITING:
        harness.step()
    assert first.status is Status.RUNNING
    harness.run()
    assert output(first) == output(second) == expected_tokens(prompt, 8, 50)


def test_hashes_of_a_sequences_blocks_are_not_copied() -> None:
    harness = Harness()
    sequence = harness.add([0] * 20)
    assert sequence.block_hashes(BLOCK_SIZE) is sequence.block_hashes(BLOCK_SIZE)


def test_different_salts_share_nothing() -> None:
    harness = Harness()
    prompt = list(range(20))
    harness.add(prompt, salt="a")
    harness.run()
    other = harness.add(prompt, salt="b")
    assert scheduled(harness.step()) == [(other, 20)]


def test_without_prefix_caching_nothing_is_reused() -> None:
    harness = Harness(prefix_caching=False)
    for _ in range(2):
        sequence = harness.add(list(range(20)))
        assert scheduled(harness.step()) == [(sequence, 20)]
        harness.run()
    assert harness.pool.num_cached == 0


def test_a_sequence_longer_than_the_pool_is_refused_with_the_figures() -> None:
    harness = Harness(num_blocks=2)
    with pytest.raises(ValueError, match=r"16 tokens and one to generate do not fit .* 16 tokens"):
        harness.add([1] * 16)


def test_a_budget_that_could_starve_decodes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_num_batched_tokens must be at least .* \(8\)"):
        Harness(max_num_seqs=8, max_num_batched_tokens=4)


def test_preempting_all_recomputes_everything() -> None:
    harness = Harness()
    sequences = [harness.add([i] * 12, max_tokens=8) for i in range(3)]
    for _ in range(4):
        harness.step()
    harness.lose_cache()
    harness.run()
    for i, sequence in enumerate(sequences):
        assert output(sequence) == expected_tokens([i] * 12, 8, 50)
