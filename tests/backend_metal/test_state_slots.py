"""Slots of recurrent state: who holds them, and what a prefix hit may begin with.

The model is a stub that fails a step which reads any other state than that of the tokens before
its own; blocks have 8 tokens.
"""

from __future__ import annotations

import pytest

from backend_metal.engine.schedule.sequence import FROM_ZEROS, Sequence, Status
from backend_metal.engine.schedule.snapshot_borders import SnapshotPolicy
from tests.support.backend_metal.scheduler_harness import BLOCK_SIZE, Harness, output, scheduled
from tests.support.backend_metal.stub_runner import (
    CacheMismatchError,
    expected_tokens,
    forced_at_first,
)

EVERY_BORDER = SnapshotPolicy(interval=2048, least_gain=1)


def hybrid(num_state_slots: int = 16, **settings: object) -> Harness:
    """A harness of a model with recurrent layers."""
    policy = settings.pop("snapshots", EVERY_BORDER)
    return Harness(num_state_slots=num_state_slots, snapshots=policy, **settings)  # type: ignore[arg-type]


def done(harness: Harness, prompt: list[int], **fields: int) -> Sequence:
    """A sequence that has ended, with the tokens that it must draw."""
    sequence = harness.add(prompt, **fields)
    harness.run()
    assert output(sequence) == expected_tokens(prompt, sequence.max_tokens, 50)
    return sequence


def num_snapshots(harness: Harness) -> int:
    assert harness.states is not None
    return harness.states.num_snapshots


@pytest.mark.parametrize("depth", [1, 2])
def test_a_sequence_begins_with_zeros_and_goes_on_in_its_own_slot(depth: int) -> None:
    harness = hybrid(depth=depth)
    sequence = harness.add([1] * 5, max_tokens=6)
    first, *later = [harness.step().scheduled[0] for _ in range(6)]
    assert first.read_slot == FROM_ZEROS
    assert {(item.read_slot, item.write_slot) for item in later} == {(first.write_slot,) * 2}
    harness.run()
    assert output(sequence) == expected_tokens([1] * 5, 6, 50)


@pytest.mark.parametrize("length", range(1, 34))
def test_a_prompt_that_comes_again_begins_at_the_last_border_before_its_end(length: int) -> None:
    """Also one that ends at a border, or is shorter than any interval between snapshots."""
    harness = hybrid()
    prompt = list(range(length))
    done(harness, prompt)
    again = done(harness, prompt)
    assert again.num_cached_tokens == (length - 1) // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize("length", range(3, 60, 3))
def test_a_prompt_with_tokens_forced_behind_it_is_kept_at_its_own_end(length: int) -> None:
    """These may be others for whoever comes next."""
    harness = hybrid(forces=True)
    prompt = list(range(length))
    harness.add(prompt, max_tokens=40)
    harness.run()
    other = harness.add([*prompt, 49])
    harness.run()
    assert other.num_cached_tokens == (length - 1) // BLOCK_SIZE * BLOCK_SIZE
    again = harness.add(prompt, max_tokens=40)
    harness.run()
    num_before_draw = length + len(forced_at_first(prompt))
    cached = (num_before_draw - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert again.num_cached_tokens == min(cached, length)
    assert again.prefix_miss is None


def test_whoever_makes_a_snapshot_goes_on_in_another_slot() -> None:
    harness = hybrid()
    harness.add([1] * 20)
    border, behind, next_one = [harness.step().scheduled[0] for _ in range(3)]
    assert (border.stop, behind.start) == (16, 16)
    assert behind.read_slot == border.write_slot
    assert behind.write_slot != border.write_slot
    assert (next_one.read_slot, next_one.write_slot) == (behind.write_slot,) * 2
    harness.run()


def test_chunks_end_where_snapshots_are_taken() -> None:
    harness = hybrid(snapshots=SnapshotPolicy(interval=16, least_gain=8))
    harness.add(list(range(60)), num_history_tokens=26)
    stops = []
    while not stops or stops[-1] < 60:
        stops.append(harness.step().scheduled[0].stop)
    assert stops == [16, 24, 32, 48, 56, 60]
    harness.run()


@pytest.mark.parametrize("shared", range(0, 41, 3))
def test_prompts_that_part_anywhere_reuse_the_snapshot_below(shared: int) -> None:
    """Not only at a snapshot's exact position, and inside a block, too."""
    harness = hybrid(snapshots=SnapshotPolicy(interval=16, least_gain=8))
    done(harness, [1] * 48)
    other = done(harness, [1] * shared + [2] * (48 - shared))
    assert other.num_cached_tokens == shared // 16 * 16


def test_prompts_are_kept_where_they_were_seen_to_part() -> None:
    harness = hybrid()
    begun = list(range(24))
    hits = [done(harness, [*begun, *[30 + i] * 20]).num_cached_tokens for i in range(4)]
    assert hits == [0, 0, 24, 24]


def test_a_chat_is_kept_before_its_last_message() -> None:
    """What is behind that may be rendered in another way next time, without its thoughts."""
    harness = hybrid()
    history = list(range(24))
    done(harness, [*history, *[30] * 20], num_history_tokens=24)
    assert done(harness, [*history, *[31] * 20]).num_cached_tokens == 24


def test_equal_prompts_make_one_snapshot() -> None:
    harness = hybrid()
    for _ in range(3):
        done(harness, [1] * 20)
    assert num_snapshots(harness) == 1


@pytest.mark.parametrize("depth", [1, 2])
def test_several_begin_with_one_snapshot_in_one_step(depth: int) -> None:
    harness = hybrid(depth=depth, max_num_batched_tokens=64)
    prompt = list(range(20))
    done(harness, prompt)
    others = [harness.add([*prompt[:16], 40 + i]) for i in range(4)]
    harness.step()
    items = harness.step().scheduled if depth == 2 else []
    harness.run()
    assert len({item.write_slot for item in items}) == len(items)
    for i, other in enumerate(others):
        assert other.num_cached_tokens == 16
        assert output(other) == expected_tokens([*prompt[:16], 40 + i], 4, 50)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_preempted_sequence_begins_again_with_a_snapshot_or_zeros(depth: int) -> None:
    """Never with what its slot holds, which is the state of later tokens or of somebody else."""
    harness = hybrid(depth=depth, num_blocks=6, max_num_batched_tokens=64)
    old, young = harness.add(list(range(20)), max_tokens=20), harness.add([7] * 20, max_tokens=20)
    harness.run()
    assert harness.scheduler.num_preemptions > 0
    assert output(old) == expected_tokens(list(range(20)), 20, 50)
    assert output(young) == expected_tokens([7] * 20, 20, 50)


def test_a_stale_state_is_caught_by_these_tests() -> None:
    harness = hybrid()
    sequence = harness.add([1] * 12, max_tokens=9)
    harness.step()
    harness.step()
    assert sequence.state is not None
    stale = sequence.state.write
    harness.scheduler.preempt_all()
    step = harness.scheduler.schedule()
    assert step.scheduled[0].read_slot != stale
    step.scheduled[0].read_slot = stale
    with pytest.raises(CacheMismatchError, match="foreign state"):
        harness.runner.forward(step, None)


def test_a_slot_is_taken_over_from_a_sequence_that_was_cancelled() -> None:
    harness = hybrid(num_state_slots=1, max_num_seqs=1, depth=2)
    first = harness.add([1] * 12, max_tokens=30)
    for _ in range(4):
        harness.step()
    harness.scheduler.finish(first)
    second = harness.add([2] * 12, max_tokens=5)
    harness.run()
    assert output(second) == expected_tokens([2] * 12, 5, 50)


def test_a_paused_sequence_gives_up_its_slot() -> None:
    harness = hybrid(num_state_slots=1, max_num_seqs=1)
    first = harness.add([1] * 20, max_tokens=9)
    harness.step()
    harness.step()
    harness.scheduler.pause(first)
    second = done(harness, [2] * 20)
    harness.scheduler.add(first)
    harness.run()
    assert output(first) == expected_tokens([1] * 20, 9, 50)
    assert output(second) == expected_tokens([2] * 20, 4, 50)


def test_who_lacks_a_slot_waits() -> None:
    """All others are read by sequences that run."""
    harness = hybrid(num_state_slots=3, max_num_seqs=3, max_num_batched_tokens=64)
    first = harness.add([1] * 9, max_tokens=9)
    second = harness.add([2] * 9, max_tokens=9)
    harness.step()
    # Each has kept the state of 8 tokens: of three slots, one writes, and reads another.
    third = harness.add([3] * 9)
    assert [sequence for sequence, _ in scheduled(harness.step())] == [first, second]
    assert third.status is Status.WAITING
    harness.run()
    for prompt, sequence in (([1] * 9, first), ([2] * 9, second), ([3] * 9, third)):
        assert output(sequence) == expected_tokens(prompt, sequence.max_tokens, 50)


def test_the_only_slot_is_had_with_the_snapshot_that_is_in_it() -> None:
    harness = hybrid(num_state_slots=1, max_num_seqs=1)
    done(harness, [1] * 17, max_tokens=0)
    assert num_snapshots(harness) == 0, "the sequence itself needs the slot"
    done(harness, [1] * 16, max_tokens=1)


def test_snapshots_never_take_more_than_their_slots() -> None:
    harness = hybrid(num_state_slots=6, max_num_seqs=2, num_blocks=200)
    assert harness.states is not None
    for i in range(20):
        done(harness, [i] * 50)
        assert num_snapshots(harness) <= 6
    assert harness.states.num_snapshots_taken == 20
    assert harness.states.num_snapshots_evicted >= 14


def test_the_latest_snapshots_stay() -> None:
    harness = hybrid(num_state_slots=5, max_num_seqs=1, num_blocks=200)
    done(harness, [0] * 20)
    for i in range(1, 10):
        done(harness, [i] * 20)
        assert done(harness, [0] * 20).num_cached_tokens == 16


def test_a_snapshot_that_had_to_go_is_told_and_made_again() -> None:
    harness = hybrid(num_state_slots=3, max_num_seqs=1, num_blocks=200)
    assert done(harness, [1] * 20).prefix_miss == "new"
    for i in range(2, 6):
        done(harness, [i] * 20)
    missed = done(harness, [1] * 20)
    assert (missed.num_cached_tokens, missed.prefix_miss) == (0, "snapshot_evicted")
    assert done(harness, [1] * 20).num_cached_tokens == 16


def test_a_prefix_without_a_snapshot_is_told() -> None:
    harness = hybrid()
    done(harness, [1] * 40)
    parted = done(harness, [1] * 24 + [2] * 16)
    assert (parted.num_cached_tokens, parted.prefix_miss) == (0, "no_snapshot")
    assert harness.scheduler.prefix_misses == {"new": 1, "no_snapshot": 1}


def test_a_snapshot_without_its_blocks_is_no_hit() -> None:
    harness = hybrid(num_blocks=8)
    done(harness, [1] * 20)
    done(harness, [2] * 60)
    missed = done(harness, [1] * 20)
    assert (missed.num_cached_tokens, missed.prefix_miss) == (0, "evicted")


def test_a_snapshot_is_found_only_once_it_is_written() -> None:
    harness = hybrid(max_num_batched_tokens=8)
    first = harness.add([1] * 40)
    harness.step()
    harness.scheduler.finish(first)
    assert num_snapshots(harness) == 0
    assert done(harness, [1] * 40).num_cached_tokens == 0


def test_a_snapshot_in_use_is_not_evicted() -> None:
    harness = hybrid(num_state_slots=4, max_num_seqs=4, max_num_batched_tokens=64, depth=2)
    done(harness, [1] * 20)
    begun = harness.add([1] * 20, max_tokens=12)
    others = [harness.add([i] * 20, max_tokens=12) for i in range(2, 5)]
    harness.run()
    assert begun.num_cached_tokens == 16
    for number, sequence in enumerate([begun, *others], start=1):
        assert output(sequence) == expected_tokens([number] * 20, 12, 50)


def test_nobody_else_reuses_a_sequence_without_a_shared_salt() -> None:
    harness = hybrid(prefix_caching=False)
    done(harness, [1] * 20)
    assert done(harness, [1] * 20).num_cached_tokens == 0
    assert num_snapshots(harness) == 0
    done(shared := hybrid(), [1] * 20)
    other = shared.add([1] * 20, salt="of another")
    shared.run()
    assert (other.num_cached_tokens, other.prefix_miss) == (0, "new")


def test_a_lost_cache_leaves_no_snapshot() -> None:
    harness = hybrid(depth=2)
    done(harness, [1] * 20)
    sequence = harness.add([1] * 20, max_tokens=9)
    harness.step()
    harness.lose_cache()
    assert num_snapshots(harness) == 0
    harness.run()
    assert output(sequence) == expected_tokens([1] * 20, 9, 50)


def test_a_long_answer_is_kept_on_its_way() -> None:
    harness = hybrid(snapshots=SnapshotPolicy(interval=32, least_gain=8))
    answered = done(harness, [1] * 20, max_tokens=60)
    told = answered.tokens.view().tolist()
    assert done(harness, [*told, 9, 9]).num_cached_tokens == 64


def test_of_an_answer_the_latest_state_is_kept() -> None:
    """A chat goes on behind it."""
    harness = hybrid(snapshots=SnapshotPolicy(least_gain=8, answer_interval=16))
    answered = done(harness, [1] * 20, max_tokens=100)
    assert num_snapshots(harness) == 2, "of the prompt and of the answer"
    told = answered.tokens.view().tolist()
    assert done(harness, [*told, 9, 9]).num_cached_tokens == 112


def test_a_pause_costs_few_tokens_of_an_answer() -> None:
    harness = hybrid(snapshots=SnapshotPolicy(answer_interval=16))
    sequence = harness.add([1] * 20, max_tokens=100)
    for _ in range(60):
        harness.step()
    harness.scheduler.pause(sequence)
    computed = sequence.num_tokens - 1
    harness.scheduler.add(sequence)
    assert harness.step().scheduled[0].start == computed // 16 * 16
    harness.run()
    assert output(sequence) == expected_tokens([1] * 20, 100, 50)


def test_answers_evict_no_more_than_a_quarter_of_what_prompts_begin_with() -> None:
    harness = hybrid(
        num_state_slots=16,
        max_num_seqs=8,
        num_blocks=400,
        snapshots=SnapshotPolicy(least_gain=8, answer_interval=8),
    )
    for i in range(6):
        done(harness, [i] * 20, max_tokens=1)
    answering = [harness.add([10 + i] * 5, max_tokens=40) for i in range(8)]
    harness.run()
    assert all(output(one) for one in answering)
    assert [done(harness, [i] * 20, max_tokens=1).num_cached_tokens for i in range(6)] == [16] * 6


def test_what_others_have_kept_is_not_replaced_by_an_answer() -> None:
    harness = hybrid(snapshots=SnapshotPolicy(least_gain=8, answer_interval=8))
    answer = expected_tokens([1] * 20, 30, 50)
    done(harness, [1] * 20 + answer[:21], max_tokens=1)
    assert num_snapshots(harness) == 1
    done(harness, [1] * 20, max_tokens=30)
    assert done(harness, [1] * 20 + answer[:24]).num_cached_tokens == 40


def test_snapshots_cost_a_prompt_few_steps() -> None:
    """And a long one few slots."""
    plain, harness = Harness(num_blocks=600), hybrid(num_blocks=600, snapshots=SnapshotPolicy())
    steps = []
    for one in (plain, harness):
        one.add([1] * 4200, max_tokens=1)
        steps.append(0)
        while one.has_work:
            one.step()
            steps[-1] += 1
    assert steps[1] <= steps[0] + 2
    assert num_snapshots(harness) == 3
