"""A scheduler stepped by hand over the checking stub model."""

from __future__ import annotations

from dataclasses import dataclass

from backend_metal.engine.pooling.readout import Readout
from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.engine.schedule.scheduler import Scheduler
from backend_metal.engine.schedule.sequence import Sequence, Status
from backend_metal.engine.schedule.snapshot_borders import SnapshotPolicy
from backend_metal.engine.schedule.state_slots import StateSlots
from backend_metal.engine.schedule.step import Step
from backend_metal.engine.schedule.step_pace import StepPace
from deployments.backend import SamplingParams
from tests.support.backend_metal.block_groups import BLOCK_SIZE as BLOCK_SIZE
from tests.support.backend_metal.block_groups import make_groups
from tests.support.backend_metal.stub_runner import (
    StubDraws,
    StubForward,
    StubRunner,
    forced_after,
    forced_at_first,
)


@dataclass
class Submitted:
    step: Step
    forward: StubForward
    draws: StubDraws | None = None


class Harness:
    """A scheduler over the checking stub model, stepped by hand.

    With ``depth`` 2 each step is scheduled before what the one before it drew is known, as in the
    engine; with 1 afterwards. ``windows``: as ``make_groups`` has it.
    """

    def __init__(
        self,
        num_blocks: int = 64,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 32,
        prefix_caching: bool = True,
        pace: StepPace | None = None,
        pool: type[BlockPool] = BlockPool,
        windows: dict[int, int] | None = None,
        forces: bool = False,
        depth: int = 1,
        num_state_slots: int = 0,
        snapshots: SnapshotPolicy | None = None,
        checks: bool = True,
    ) -> None:
        """``num_state_slots``: for a model with recurrent layers. ``checks``: the books, after each
        step, which takes long with very many blocks."""
        self.checks = checks
        self.depth = depth
        self.under_way: Submitted | None = None
        groups = make_groups(num_blocks, windows, pool)
        self.pool = groups[0].pool
        self.runner = StubRunner(groups, num_state_slots=num_state_slots)
        self.states = (
            StateSlots(num_state_slots, BLOCK_SIZE, snapshots) if num_state_slots else None
        )
        self.scheduler = Scheduler(
            groups,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            pace=pace or StepPace(),
            states=self.states,
        )
        self.prefix_caching = prefix_caching
        self.forces = forces
        self.arrival = 0

    def add(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 4,
        priority: int = 0,
        tenant: str = "",
        weight: float = 1.0,
        group: str = "",
        salt: str = "",
        num_history_tokens: int = 0,
        readout: Readout | None = None,
    ) -> Sequence:
        self.arrival += 1
        sequence = Sequence(
            f"request-{self.arrival}",
            0,
            prompt,
            SamplingParams(),
            max_tokens=max_tokens,
            seed=0,
            arrival=self.arrival,
            priority=priority,
            tenant=tenant,
            weight=weight,
            group=group,
            cache_salt=salt if self.prefix_caching and self._may_share(readout) else None,
            num_history_tokens=num_history_tokens,
            readout=readout,
        )
        begun = forced_at_first(prompt) if self.forces and readout is None else []
        if len(begun) < max_tokens:
            self.scheduler.extend(sequence, begun)
        else:
            # They end it, and the prompt is all there is to compute.
            sequence.max_tokens = 0
        self.scheduler.add(sequence)
        return sequence

    def _may_share(self, readout: Readout | None) -> bool:
        return readout is None or readout.is_of_last_token

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or self.under_way is not None

    def step(self) -> Step:
        """Sees one step through."""
        submitted = self.under_way or self._draw(self._submit(None))
        assert submitted.draws is not None
        ahead = None
        if self.depth > 1 and self.scheduler.has_work:
            ahead = self._submit(submitted.draws.token_ids)
        self._complete(submitted.step, submitted.draws)
        self.under_way = self._draw(ahead) if ahead else None
        if self.checks:
            self.scheduler.check_integrity()
        return submitted.step

    def _submit(self, drawn: object) -> Submitted:
        step = self.scheduler.schedule()
        return Submitted(step, self.runner.forward(step, drawn))

    def _draw(self, submitted: Submitted) -> Submitted:
        self.scheduler.draw(submitted.step)
        submitted.draws = submitted.forward.sample()
        return submitted

    def _complete(self, step: Step, draws: StubDraws) -> None:
        drawn = iter(draws.wait())
        for item in step.scheduled:
            sequence = item.sequence
            token = next(drawn).token_id if item.draws else None
            if sequence.status is Status.FINISHED:
                continue
            if sequence.is_pending and token is not None:
                sequence.learn(token)
                room = sequence.max_tokens - sequence.num_output_tokens
                if self.forces:
                    self.scheduler.extend(sequence, forced_after(token)[:room])
            if item.ends_readout or (token is not None and not sequence.wants_more):
                self.scheduler.finish(sequence)

    def lose_cache(self) -> None:
        """As after a step that failed with nobody in it."""
        if self.under_way is not None and self.under_way.draws is not None:
            self._complete(self.under_way.step, self.under_way.draws)
            self.under_way = None
        self.scheduler.preempt_all()
        self.scheduler.clear_cache()
        self.runner.reset()

    def run(self) -> None:
        while self.has_work:
            self.step()
        assert not self.scheduler.holds_blocks
        assert self.states is None or self.states.num_free == self.states.num_slots


def output(sequence: Sequence) -> list[int]:
    """The tokens that are known."""
    return sequence.token_range(sequence.num_prompt_tokens, sequence.num_known_tokens).tolist()


def scheduled(step: Step) -> list[tuple[Sequence, int]]:
    return [(item.sequence, item.num_tokens) for item in step.scheduled]
