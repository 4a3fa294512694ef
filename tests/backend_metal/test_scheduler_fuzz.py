"""Each sequence draws its own tokens, whatever happens, and no block is lost or shared wrongly."""

from hypothesis import settings, target
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from backend_metal.engine.schedule.sequence import Sequence, Status
from backend_metal.engine.schedule.snapshot_borders import SnapshotPolicy
from tests.support.backend_metal.known_cost import knowing
from tests.support.backend_metal.scheduler_harness import Harness, output
from tests.support.backend_metal.stub_readout import StubReadout
from tests.support.backend_metal.stub_runner import expected_tokens
from tests.support.fuzzing import fuzz

MAX_SEQUENCES = 24
WEIGHTS = {"": 1.0, "light": 0.1, "even": 1.0, "heavy": 3.0}
"""By tenant."""


groups = st.tuples(
    st.integers(3, 14), st.just({}) | st.dictionaries(st.integers(1, 30), st.integers(3, 14))
) | st.tuples(
    st.just(0), st.dictionaries(st.integers(1, 30), st.integers(3, 14), min_size=1, max_size=2)
)
"""Blocks of layers that see all tokens, if there are any, and by window."""


class SchedulerMachine(RuleBasedStateMachine):
    """Add, repeat, step, pause, cancel, preempt all, over a pool that is too small."""

    @initialize(
        groups=groups,
        max_num_seqs=st.integers(1, 6),
        extra_budget=st.integers(0, 40),
        prefix_caching=st.booleans(),
        base=st.sampled_from([None, 0.2, 3.0]),
        forces=st.booleans(),
        num_spare_slots=st.none() | st.integers(0, 6),
        interval=st.sampled_from([8, 24, 2048]),
        least_gain=st.sampled_from([1, 9, 64]),
        answer_interval=st.sampled_from([8, 64]),
    )
    def start(
        self,
        groups: tuple[int, dict[int, int]],
        max_num_seqs: int,
        extra_budget: int,
        prefix_caching: bool,
        base: float | None,
        forces: bool,
        num_spare_slots: int | None,
        interval: int,
        least_gain: int,
        answer_interval: int,
    ) -> None:
        """``num_spare_slots``: of a model with recurrent layers, those for snapshots alone."""
        self.harness = Harness(
            num_blocks=groups[0],
            windows=groups[1],
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + extra_budget,
            prefix_caching=prefix_caching,
            pace=knowing(base),
            forces=forces,
            depth=2,
            num_state_slots=0 if num_spare_slots is None else max_num_seqs + num_spare_slots,
            snapshots=SnapshotPolicy(interval, least_gain, answer_interval),
        )
        self.sequences: list[Sequence] = []
        self.cancelled: set[Sequence] = set()

    @precondition(lambda self: len(self.sequences) < MAX_SEQUENCES)
    @rule(
        prefix=st.sampled_from([[], [1] * 8, [1] * 16, [1] * 8 + [2] * 8]),
        suffix=st.integers(1, 20).map(lambda length: [0] * length)
        | st.lists(st.integers(0, 3), min_size=1, max_size=20),
        max_tokens=st.integers(1, 20),
        priority=st.integers(0, 2),
        salt=st.sampled_from(["", "tenant"]),
        tenant=st.sampled_from([*WEIGHTS]),
        group=st.sampled_from(["", "one", "two"]),
        num_history_tokens=st.integers(0, 20),
    )
    def add(
        self,
        prefix: list[int],
        suffix: list[int],
        max_tokens: int,
        priority: int,
        salt: str,
        tenant: str,
        group: str,
        num_history_tokens: int,
    ) -> None:
        prompt = prefix + suffix
        room = self.harness.scheduler.capacity_tokens - len(prompt)
        if room > 0:
            self.sequences.append(
                self.harness.add(
                    prompt,
                    max_tokens=min(max_tokens, room),
                    priority=priority,
                    salt=salt,
                    tenant=tenant,
                    weight=WEIGHTS[tenant],
                    group=group,
                    num_history_tokens=num_history_tokens,
                )
            )

    @precondition(lambda self: len(self.sequences) < MAX_SEQUENCES)
    @rule(
        prefix=st.sampled_from([[], [1] * 8, [1] * 16]),
        suffix=st.lists(st.integers(0, 3), min_size=1, max_size=20),
        is_of_last_token=st.booleans(),
        tenant=st.sampled_from([*WEIGHTS]),
        group=st.sampled_from(["", "one", "two"]),
    )
    def add_input(
        self, prefix: list[int], suffix: list[int], is_of_last_token: bool, tenant: str, group: str
    ) -> None:
        """A prompt that nothing is generated for."""
        prompt = prefix + suffix
        if len(prompt) <= self.harness.scheduler.capacity_tokens:
            self.sequences.append(
                self.harness.add(
                    prompt,
                    max_tokens=0,
                    tenant=tenant,
                    weight=WEIGHTS[tenant],
                    group=group,
                    readout=StubReadout(is_of_last_token=is_of_last_token),
                )
            )

    @precondition(lambda self: self.unfinished() and len(self.sequences) < MAX_SEQUENCES)
    @rule(data=st.data(), count=st.integers(1, 3))
    def repeat(self, data: st.DataObject, count: int) -> None:
        other = data.draw(st.sampled_from(self.unfinished()))
        if other.readout is not None:
            return
        prompt = other.tokens.view()[: other.num_prompt_tokens].tolist()
        for _ in range(count):
            self.sequences.append(
                self.harness.add(
                    prompt,
                    max_tokens=other.max_tokens,
                    tenant=other.tenant,
                    weight=other.weight,
                    group=other.group,
                )
            )

    @precondition(lambda self: self.harness.has_work)
    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.harness.has_work:
                assert self.harness.step().scheduled, "there is work, but nothing was scheduled"

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.unfinished()))
        self.harness.scheduler.finish(sequence)
        self.cancelled.add(sequence)

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data())
    def pause_or_resume(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.unfinished()))
        if sequence.status is Status.PAUSED:
            self.harness.scheduler.add(sequence)
        else:
            self.harness.scheduler.pause(sequence)

    @rule()
    def preempt_all(self) -> None:
        self.harness.scheduler.preempt_all()

    @rule()
    def lose_cache(self) -> None:
        self.harness.lose_cache()

    @invariant()
    def bookkeeping_is_consistent(self) -> None:
        self.harness.scheduler.check_integrity()

    def unfinished(self) -> list[Sequence]:
        return [item for item in self.sequences if item.status is not Status.FINISHED]

    def run_to_the_end(self) -> None:
        """However few blocks there are, a step that draws no token computes prompts, and does not
        do so for ever."""
        longest_wait = sum(one.num_prompt_tokens + one.max_tokens for one in self.unfinished())
        waited = 0
        while self.harness.has_work:
            step = self.harness.step()
            has_ended = any(item.sequence.status is Status.FINISHED for item in step.scheduled)
            waited = 0 if has_ended or step.drawing else waited + 1
            assert waited <= longest_wait, f"no token in {waited} steps"

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        for sequence in self.unfinished():
            if sequence.status is Status.PAUSED:
                self.harness.scheduler.add(sequence)
        self.run_to_the_end()
        target(float(self.harness.scheduler.num_preemptions), label="preemptions")
        target(float(self.harness.scheduler.num_prefix_hit_tokens), label="prefix hits")
        if (states := self.harness.states) is not None:
            target(float(states.num_snapshots_evicted), label="snapshots evicted")
            assert states.num_free == states.num_slots
        for sequence in self.sequences:
            prompt = sequence.tokens.view()[: sequence.num_prompt_tokens].tolist()
            if isinstance(sequence.readout, StubReadout):
                assert sequence in self.cancelled or sequence.readout.has_read(prompt)
                continue
            forces = self.harness.forces
            expected = expected_tokens(prompt, sequence.max_tokens, 50, forces=forces)
            if sequence in self.cancelled:
                expected = expected[: len(output(sequence))]
            assert output(sequence) == expected
        assert not self.harness.scheduler.holds_blocks


SchedulerMachine.TestCase.settings = settings(fuzz(2000, quick=40), stateful_step_count=50)
TestScheduler = SchedulerMachine.TestCase
