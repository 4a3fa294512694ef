"""Steps that keep to a bound, on a machine whose steps take as long as a formula says."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.engine.schedule.decode_times import ENOUGH, FORGOTTEN_AFTER
from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.step import ScheduledSequence, Step
from backend_metal.engine.schedule.step_pace import StepCost, StepPace
from deployments.backend import SamplingParams
from tests.support.backend_metal.scheduler_harness import BLOCK_SIZE, Harness, output
from tests.support.backend_metal.stub_runner import expected_tokens
from tests.support.fuzzing import fuzz

MOST = 10_000


@dataclass(frozen=True)
class Machine:
    base: float
    per_decode: float
    per_prefill_token: float

    def seconds(self, step: Step) -> float:
        return self.of(step.num_decodes, step.num_tokens - step.num_decodes)

    def of(self, num_decodes: int, num_prefill_tokens: int) -> float:
        decodes = self.per_decode * num_decodes
        return self.base + decodes + self.per_prefill_token * num_prefill_tokens

    @property
    def alone(self) -> float:
        return self.of(1, 0)

    def costs(self, cost: StepCost) -> bool:
        known = (cost.base, cost.per_decode, cost.per_prefill_token)
        mine = (self.base, self.per_decode, self.per_prefill_token)
        return known == pytest.approx(mine, rel=0.05)


CPU = Machine(base=0.0045, per_decode=0.00017, per_prefill_token=0.00014)


def made(machine: Machine, num_decodes: int, num_prefill_tokens: int) -> tuple[Step, float]:
    """A step, of more sequences than any bound, and how long it took."""
    sequence = Sequence("", 0, [1], SamplingParams(), max_tokens=1, seed=0, arrival=0)
    step = Step(
        scheduled=[ScheduledSequence(sequence, 0)] * MOST,
        num_tokens=num_decodes + num_prefill_tokens,
        num_decodes=num_decodes,
    )
    return step, machine.seconds(step)


def learned(machine: Machine, max_slowdown: float = 1.5, **options: int) -> StepPace:
    """A pace that has seen the machine at all kinds of steps, one prompt token a decode."""
    dice = random.Random(0)
    pace = StepPace(max_slowdown, **options)
    for _ in range(400):
        num_decodes, num_prefill_tokens = dice.randint(0, 32), dice.randint(0, 32)
        pace.observe(*made(machine, num_decodes, num_prefill_tokens))
    return pace


def recording(seconds_beside: float) -> StepPace:
    """That decodes 8 in 1 ms, and takes so long for a few tokens beside them."""
    pace = StepPace(decodes_are_recorded=True)
    for _ in range(ENOUGH):
        pace.observe(made(CPU, 8, 0)[0], 0.001)
        pace.observe(made(CPU, 8, 5)[0], seconds_beside)
    return pace


def test_known_tokens_wait_for_steps_of_their_own_where_all_others_would_wait_for_them() -> None:
    # All eight lose 3 ms, which are 24 places in steps of 1 ms.
    pace = recording(0.004)
    assert not pace.pays_together(24, 8)
    assert pace.pays_together(25, 8)
    # Nobody knows what another number of decodes takes.
    assert pace.pays_together(1, 7)
    assert recording(0.001).pays_together(1, 8)


def test_it_is_tried_again_after_a_while() -> None:
    pace = recording(0.004)
    for _ in range(FORGOTTEN_AFTER):
        assert not pace.pays_together(1, 8)
        pace.observe(made(CPU, 8, 0)[0], 0.001)
    pace.observe(made(CPU, 8, 0)[0], 0.001)
    assert pace.pays_together(1, 8)


def test_where_nothing_is_recorded_known_tokens_are_computed_together() -> None:
    pace = StepPace()
    for _ in range(ENOUGH):
        pace.observe(made(CPU, 8, 0)[0], 0.001)
        pace.observe(made(CPU, 8, 5)[0], 0.004)
    assert pace.pays_together(1, 8)


def test_the_cost_of_steps_is_learned_and_kept() -> None:
    pace = learned(CPU)
    assert CPU.costs(pace.cost)
    for _ in range(5000):
        pace.observe(*made(CPU, 1, 0))
    assert CPU.costs(pace.cost)


def test_a_step_that_stalls_is_soon_made_up_for() -> None:
    pace = learned(CPU)
    step, _ = made(CPU, 8, 0)
    pace.observe(step, 2.0)
    assert pace.cost.base < 1.2 * CPU.base


def test_a_machine_that_slows_down_is_noticed() -> None:
    pace, slow = learned(CPU), Machine(0.009, 0.00034, 0.00028)
    dice = random.Random(1)
    for _ in range(1500):
        num_decodes, num_prefill_tokens = dice.randint(0, 32), dice.randint(0, 32)
        pace.cost.observe(num_decodes, num_prefill_tokens, slow.of(num_decodes, num_prefill_tokens))
    assert slow.costs(pace.cost)


def test_nothing_is_bounded_without_a_factor() -> None:
    pace = StepPace(None)
    pace.observe(*made(CPU, 7, 0))
    assert pace.max_prefill_tokens(7, MOST) == MOST
    assert pace.max_sequences(MOST) == MOST


def test_batches_grow_by_one_until_it_is_known_what_they_cost() -> None:
    pace = StepPace(1.5)
    harness = Harness(num_blocks=512, max_num_seqs=24, max_num_batched_tokens=64, pace=pace)
    for number in range(20):
        harness.add([number, 1, 2], max_tokens=60)
    steps = run_to_the_end(harness, CPU)
    assert [len(step.scheduled) for step in steps[:6]] == [1, 2, 3, 4, 5, 6]
    assert max(len(step.scheduled) for step in steps) == pytest.approx(
        (1.5 * CPU.alone - CPU.base) / CPU.per_decode, abs=3
    )
    assert CPU.costs(pace.cost)


def test_prompts_get_what_decodes_leave() -> None:
    pace = learned(CPU, 2.0, least_prefill=8)
    for num_decodes in (1, 8, 16):
        left = pace.max_prefill_tokens(num_decodes, MOST)
        assert CPU.of(num_decodes, left) == pytest.approx(2.0 * CPU.alone, rel=0.03)
    # Nobody waits for a token of a step without decodes, and prompts never starve.
    assert pace.max_prefill_tokens(0, MOST) == MOST
    assert pace.max_prefill_tokens(100, MOST) == 8
    assert pace.max_prefill_tokens(100, 3) == 3
    # With one prompt token a decode, so many sequences go on for ever.
    beyond_base = 2.0 * CPU.alone - CPU.base
    assert pace.max_sequences(MOST) == pytest.approx(beyond_base / (0.00017 + 0.00014), abs=2)
    assert pace.max_sequences(5) == 5


def test_one_sequence_always_runs() -> None:
    pace = learned(Machine(0.0001, 0.001, 0.001), 1.01)
    assert pace.max_sequences(MOST) == 1
    assert pace.max_prefill_tokens(1, MOST) == 16


def test_a_machine_that_is_slower_when_busy_is_held_to_what_it_does_alone() -> None:
    pace = learned(CPU, 2.0, least_prefill=1)
    busy = Machine(1.4 * CPU.base, CPU.per_decode, CPU.per_prefill_token)
    for _ in range(20):
        pace.observe(*made(CPU, 1, 0))
    dice = random.Random(1)
    for _ in range(2000):
        pace.observe(*made(busy, dice.randint(2, 16), dice.randint(0, 16)))
    left = pace.max_prefill_tokens(8, MOST)
    assert busy.of(8, left) == pytest.approx(2.0 * CPU.alone, rel=0.03)
    # Held to less than it can do, it runs one sequence, and learns what that takes now.
    slow = Machine(3 * CPU.base, CPU.per_decode, CPU.per_prefill_token)
    for _ in range(1000):
        pace.observe(*made(slow, dice.randint(2, 16), dice.randint(0, 16)))
    assert pace.max_sequences(MOST) == 1
    for _ in range(2000):
        pace.observe(*made(slow, 1, 0))
    assert slow.of(8, pace.max_prefill_tokens(8, MOST)) == pytest.approx(2 * slow.alone, rel=0.03)


def run_to_the_end(harness: Harness, machine: Machine) -> list[Step]:
    steps = []
    while harness.scheduler.has_work:
        decoding = [item for item in harness.scheduler.running if item.num_uncomputed_tokens == 1]
        step = harness.step()
        harness.scheduler.pace.observe(step, machine.seconds(step))
        scheduled = {item.sequence for item in step.scheduled}
        assert scheduled.issuperset(decoding), "a running sequence got no token"
        steps.append(step)
    return steps


prompts = st.lists(st.integers(1, 60), min_size=1, max_size=40)


@fuzz(60)
@given(
    base=st.floats(0.001, 0.02),
    per_decode=st.floats(0.00001, 0.002),
    per_prefill_token=st.floats(0.00001, 0.002),
    slowdown=st.floats(1.1, 4.0),
    lengths=prompts,
    outputs=st.integers(1, 30),
)
def test_steps_keep_to_the_bound_and_everybody_is_served(
    base: float,
    per_decode: float,
    per_prefill_token: float,
    slowdown: float,
    lengths: list[int],
    outputs: int,
) -> None:
    machine = Machine(base, per_decode, per_prefill_token)
    bound = 1.1 * slowdown * machine.alone
    pace = learned(machine, slowdown, least_prefill=BLOCK_SIZE)
    harness = Harness(num_blocks=512, max_num_seqs=24, max_num_batched_tokens=64, pace=pace)
    added: list[Sequence] = [
        harness.add([number % 40, *range(length)], max_tokens=outputs)
        for number, length in enumerate(lengths)
    ]
    for step in run_to_the_end(harness, machine):
        num_prefill_tokens = step.num_tokens - step.num_decodes
        if step.num_decodes > 1 and not 0 < num_prefill_tokens <= BLOCK_SIZE:
            assert machine.seconds(step) <= bound
    for number, sequence in enumerate(added):
        prompt = [number % 40, *range(lengths[number])]
        assert output(sequence) == expected_tokens(prompt, outputs, 50)


def test_a_full_queue_is_worked_off_as_fast_as_the_bound_allows() -> None:
    pace = learned(CPU, 1.5, least_prefill=BLOCK_SIZE)
    harness = Harness(
        num_blocks=2048, max_num_seqs=32, max_num_batched_tokens=512, pace=pace, checks=False
    )
    for number in range(300):
        harness.add([number % 50, number // 50, *range(40)], max_tokens=64)
    steps = run_to_the_end(harness, CPU)
    seconds = [CPU.seconds(step) for step in steps if step.num_decodes]
    assert sum(seconds) / len(seconds) <= 1.5 * CPU.alone
    # There is time for 9: (1.5 * 4.67 - 4.5) / (0.17 + 0.14 * 42 / 64).
    busy = [step.num_decodes for step in steps[100:-200]]
    assert sum(busy) / len(busy) >= 7
