"""How much of what could be reused is, of models that don't keep all, within the default budget.

The ideal is a cache without limits in which any block may follow any other: what plain attention
would reuse. With recurrent layers, shapes are those of Qwen3.5-9B with 4-bit weights on a Mac of
16 GB, which is the machine that has least room for snapshots of those that the model fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from backend_metal.engine.memory.kv_blocks import GIB, Demand, GroupBytes, num_kv_blocks
from backend_metal.engine.memory.state_memory import StatePlan, plan_states
from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.step import Step
from tests.support.backend_metal.scheduler_harness import BLOCK_SIZE, Harness, output
from tests.support.backend_metal.stub_runner import StubForward, StubRunner
from tests.support.tables import TABLE

MEMORY = 16 * GIB
FRACTION = 0.8
WEIGHTS = int(5.0 * GIB)
BYTES_PER_TOKEN, BYTES_PER_SLOT = 32_768, 51_500_000
BYTES_PER_BLOCK = BLOCK_SIZE * BYTES_PER_TOKEN
PLACES, CONTEXT = 32, 32_768

NUM_PREFIXES, PREFIX_TOKENS, REQUESTS_PER_PREFIX = 40, 512, 10
TURNS = 20
QUESTION_TOKENS, ANSWER_TOKENS = 60, 30


def default_plan() -> tuple[StatePlan, int]:
    """And how many blocks the KV cache has beside it."""
    groups = [GroupBytes(None, BYTES_PER_BLOCK)]
    demand = Demand(BLOCK_SIZE, PLACES, 512, CONTEXT)
    plan = plan_states(
        budget_bytes=int(MEMORY * FRACTION) - WEIGHTS,
        bytes_per_slot=BYTES_PER_SLOT,
        groups=groups,
        demand=demand,
    )
    (num_blocks,) = num_kv_blocks(
        groups,
        demand,
        memory_bytes=MEMORY,
        memory_fraction=FRACTION,
        weight_bytes=WEIGHTS + plan.nbytes,
    )
    return plan, num_blocks


@dataclass
class Ideal:
    """All blocks that were ever computed."""

    known: set[bytes] = field(default_factory=set)

    def hit(self, sequence: Sequence) -> int:
        hashes = sequence.block_hashes(BLOCK_SIZE)[: (sequence.num_tokens - 1) // BLOCK_SIZE]
        count = 0
        while count < len(hashes) and hashes[count] in self.known:
            count += 1
        return count * BLOCK_SIZE

    def learn(self, sequence: Sequence) -> None:
        self.known.update(sequence.block_hashes(BLOCK_SIZE))


class Unchecked(StubRunner):
    """Draws anything. What it would check takes long for long prompts, and is checked elsewhere."""

    def forward(self, step: Step, drawn: Any) -> StubForward:
        return StubForward(self, step, [item.stop << 20 for item in step.scheduled])


class Workload:
    def __init__(self, num_blocks: int, **settings: Any) -> None:
        """``settings``: more of the harness's."""
        self.harness = Harness(
            num_blocks=num_blocks,
            max_num_seqs=PLACES,
            max_num_batched_tokens=512,
            depth=2,
            checks=False,
            **settings,
        )
        self.harness.runner = Unchecked(self.harness.scheduler.groups)
        self.ideal = Ideal()
        self.hit_tokens = 0
        self.ideal_tokens = 0

    def run(self, prompt: list[int], *, max_tokens: int, history: int) -> Sequence:
        sequence = self.harness.add(prompt, max_tokens=max_tokens, num_history_tokens=history)
        self.ideal_tokens += self.ideal.hit(sequence)
        self.harness.run()
        self.hit_tokens += sequence.num_cached_tokens
        self.ideal.learn(sequence)
        return sequence

    @property
    def ratio(self) -> float:
        return self.hit_tokens / self.ideal_tokens


def shared_prefixes(workload: Workload, *, tells_history: bool) -> Iterator[None]:
    """In rounds, so that a prefix comes again when all others have been there."""
    rng = np.random.default_rng(0)
    prefixes = rng.integers(0, 50, (NUM_PREFIXES, PREFIX_TOKENS)).tolist()
    for _ in range(REQUESTS_PER_PREFIX):
        for prefix in prefixes:
            question = rng.integers(0, 50, 48).tolist()
            history = PREFIX_TOKENS if tells_history else 0
            workload.run([*prefix, *question], max_tokens=1, history=history)
            yield


def chat(workload: Workload, *, tells_history: bool, thinks: bool) -> Iterator[None]:
    """``thinks``: what an answer begins with is gone in the next turn."""
    rng = np.random.default_rng(1)
    history: list[int] = rng.integers(0, 50, 200).tolist()
    for _ in range(TURNS):
        asked = [*history, *rng.integers(0, 50, QUESTION_TOKENS).tolist()]
        told = len(history) if tells_history else 0
        answered = workload.run(asked, max_tokens=ANSWER_TOKENS, history=told)
        history = [*asked, *output(answered)[10 if thinks else 0 :]]
        yield


def interleaved(many: Iterator[None], few: Iterator[None], each: int) -> None:
    for number, _ in enumerate(many):
        if number % each == 0:
            next(few, None)


@pytest.mark.parametrize(
    ("tells_history", "least"),
    [
        (True, 0.9),
        # A prompt that says nothing of its parts shows where others leave it when the first one
        # does: of ten requests the second computes the prefix, too.
        (False, 8 / 9),
    ],
)
@pytest.mark.parametrize("thinks", [False, True])
def test_hits_are_nine_tenths_of_the_ideal(
    tells_history: bool,
    least: float,
    thinks: bool,
    record_property: Callable[[str, object], None],
) -> None:
    """40 prefixes with 10 requests each, and a chat of 20 turns among them."""
    plan, num_blocks = default_plan()
    workload = Workload(num_blocks, num_state_slots=plan.num_slots)
    interleaved(
        shared_prefixes(workload, tells_history=tells_history),
        chat(workload, tells_history=tells_history, thinks=thinks),
        each=20,
    )
    told = f"{'history' if tells_history else 'tokens alone'}, {'' if thinks else 'no '}thoughts"
    hits = f"{workload.hit_tokens} of {workload.ideal_tokens}"
    record_property(TABLE, ("Prefix hits of hybrids", told, hits, f"{workload.ratio:.1%}"))
    assert workload.ratio >= least
    states = workload.harness.states
    assert states is not None
    workload.harness.scheduler.check_integrity()
    assert states.num_snapshots <= plan.num_slots
    blocks = workload.harness.pool.num_blocks * BYTES_PER_BLOCK
    assert WEIGHTS + plan.nbytes + blocks <= MEMORY * FRACTION


@dataclass(frozen=True)
class Windows:
    """A checkpoint whose layers have windows, on a Mac."""

    name: str
    memory: int
    weights: int
    window: int
    bytes_per_token: tuple[int, int]
    """Of layers that see all tokens, and of the others."""

    @property
    def num_blocks(self) -> tuple[int, ...]:
        whole, windows = (size * BLOCK_SIZE for size in self.bytes_per_token)
        return num_kv_blocks(
            [GroupBytes(None, whole), GroupBytes(self.window, windows)],
            Demand(BLOCK_SIZE, PLACES, 512, CONTEXT),
            memory_bytes=self.memory,
            memory_fraction=FRACTION,
            weight_bytes=self.weights,
        )


@pytest.mark.parametrize(
    "shape",
    [
        Windows("gpt-oss-20b, 16 GB", 16 * GIB, 12 * GIB, 128, (24_576, 24_576)),
        Windows("Gemma 4 26B-A4B, 32 GB", 32 * GIB, 15 * GIB, 1024, (20_480, 204_800)),
    ],
    ids=lambda shape: shape.name,
)
@pytest.mark.parametrize(("tells_history", "least"), [(True, 0.9), (False, 8 / 9)])
def test_hits_with_windows_are_nine_tenths_of_the_ideal(
    shape: Windows,
    tells_history: bool,
    least: float,
    record_property: Callable[[str, object], None],
) -> None:
    """The same requests, with thoughts that are gone in the next turn."""
    whole, windows = shape.num_blocks
    workload = Workload(whole, windows={shape.window: windows})
    interleaved(
        shared_prefixes(workload, tells_history=tells_history),
        chat(workload, tells_history=tells_history, thinks=True),
        each=20,
    )
    told = f"{shape.name}, {'history' if tells_history else 'tokens alone'}"
    hits = f"{workload.hit_tokens} of {workload.ideal_tokens}"
    record_property(TABLE, ("Prefix hits with windows", told, hits, f"{workload.ratio:.1%}"))
    assert workload.ratio >= least
    workload.harness.scheduler.check_integrity()
