"""A scheduler stepped by hand over the checking stub model."""

from __future__ import annotations

from backend_metal.engine.pooling.readout import Readout
from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.engine.schedule.scheduler import Scheduler
from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.step import Step
from backend_metal.engine.schedule.step_pace import StepPace
from deployments.backend import SamplingParams
from tests.support.backend_metal.stub_runner import StubRunner, forced_after

BLOCK_SIZE = 8


class Harness:
    """A scheduler over the checking stub model, stepped by hand."""

    def __init__(
        self,
        num_blocks: int = 64,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 32,
        prefix_caching: bool = True,
        pace: StepPace | None = None,
        pool: type[BlockPool] = BlockPool,
        forces: bool = False,
    ) -> None:
        self.pool = pool(num_blocks)
        self.runner = StubRunner(num_blocks, BLOCK_SIZE)
        self.scheduler = Scheduler(
            self.pool,
            block_size=BLOCK_SIZE,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            pace=pace or StepPace(),
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
            readout=readout,
        )
        self.scheduler.add(sequence)
        return sequence

    def _may_share(self, readout: Readout | None) -> bool:
        return readout is None or readout.is_of_last_token

    def step(self) -> Step:
        step = self.scheduler.schedule()
        draws = iter(self.runner.run(step))
        for item in step.scheduled:
            drawn = next(draws).token_id if item.samples else None
            self.scheduler.complete(item, drawn)
            if drawn is not None and self.forces:
                room = item.sequence.max_tokens - item.sequence.num_output_tokens
                self.scheduler.extend(item.sequence, forced_after(drawn)[:room])
            is_read = item.sequence.readout is not None and item.sequence.is_prompt_computed
            if is_read or 0 < item.sequence.max_tokens <= item.sequence.num_output_tokens:
                self.scheduler.finish(item.sequence)
        self.scheduler.check_integrity()
        return step

    def lose_cache(self) -> None:
        """As after a failed step."""
        self.scheduler.preempt_all()
        self.pool.clear_cache()
        self.runner.reset()

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()
        assert self.pool.num_free == self.pool.num_blocks


def output(sequence: Sequence) -> list[int]:
    return sequence.tokens.view()[sequence.num_prompt_tokens :].tolist()


def scheduled(step: Step) -> list[tuple[Sequence, int]]:
    return [(item.sequence, item.num_tokens) for item in step.scheduled]
