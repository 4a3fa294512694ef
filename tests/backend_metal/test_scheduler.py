import pytest

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


def test_a_prompt_that_is_cached_whole_runs_its_last_token_in_a_copied_block() -> None:
    harness = Harness()
    prompt = list(range(16))
    first = harness.add(prompt)
    harness.run()
    again = harness.add(prompt)
    step = harness.step()
    assert scheduled(step) == [(again, 1)]
    assert len(step.block_copies) == 1
    harness.run()
    assert output(again) == output(first)


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


@pytest.mark.parametrize("prompt_len", [1, 7, 8, 9, 20])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_fork_shares_its_parents_prompt(prompt_len: int, prefix_caching: bool) -> None:
    harness = Harness(prefix_caching=prefix_caching)
    prompt = list(range(prompt_len))
    parent = harness.add(prompt, max_tokens=6)
    children = [harness.add(prompt, max_tokens=6, parent=parent) for _ in range(3)]
    harness.step()
    step = harness.step()
    assert scheduled(step) == [(parent, 1), *((child, 1) for child in children)]
    full_blocks = (prompt_len - 1) // BLOCK_SIZE
    held = harness.pool.num_blocks - harness.pool.num_free
    assert held <= full_blocks + 4 * 2
    harness.run()
    for sequence in (parent, *children):
        assert output(sequence) == expected_tokens(prompt, 6, 50)


def test_a_fork_may_copy_a_block_that_its_parent_copies_in_the_same_step() -> None:
    harness = Harness(max_num_seqs=1)
    prompt = [1] * 13
    harness.add(prompt, max_tokens=5)
    harness.run()
    parent = harness.add(prompt, max_tokens=8)
    child = harness.add(prompt, max_tokens=8, parent=parent)
    while parent.num_tokens < 16:
        harness.step()
    # Recomputed, the parent finds its whole prompt cached and copies the last block to write it.
    harness.scheduler.preempt_all()
    harness.add([9] * 5, priority=-1)
    harness.scheduler.max_num_seqs = 3
    harness.run()
    assert output(parent) == output(child) == expected_tokens(prompt, 8, 50)


def test_forks_outlive_a_parent_that_ends_during_its_prefill() -> None:
    harness = Harness(max_num_batched_tokens=8)
    prompt = list(range(20))
    parent = harness.add(prompt)
    child = harness.add(prompt, parent=parent)
    harness.step()
    harness.scheduler.finish(parent)
    harness.run()
    assert output(child) == expected_tokens(prompt, 4, 50)


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
