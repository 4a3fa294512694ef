"""Models with recurrent layers in the engine: greedy tokens are mlx-lm's, wherever a state is kept,
found again, taken away or handed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend_metal import LLM, SamplingParams
from backend_metal.backend import MlxBackend
from backend_metal.device import Device
from backend_metal.engine import build
from backend_metal.engine.engine import Engine
from backend_metal.engine.memory.kv_blocks import Demand, GroupBytes
from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.snapshot_borders import SnapshotPolicy
from backend_metal.engine.schedule.state_slots import StateSlots
from backend_metal.engine.text.prompt import TOKENS_AT_A_CUT
from backend_metal.models.families.table import FAMILIES
from deployments.backend import ChatPrompt, Delta, EngineConfig, GenerationRequest
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.mlx_lm_greedy import greedy_tokens
from tests.support.tables import TABLE

RECURRENT = sorted(name for name, family in FAMILIES.items() if family.recurrent is not None)
# With attention and without: for what does not depend on the kind of recurrence.
KINDS = ["mamba2", "qwen3_5"]
NUM_TOKENS = 64
BLOCK_SIZE = 8
NUM_TIGHT = 14
"""Blocks that are too few for all prompts and their answers at a time."""
NUM_TIGHT_WINDOWS = 10
"""The same of a model that sees no more than 16 tokens."""
SNAPSHOTS = SnapshotPolicy(interval=2048, least_gain=1, answer_interval=16)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


@dataclass
class Checkpoint:
    family: str
    path: Path
    model: Any

    def expected(self, prompt: list[int], answer: list[int]) -> list[int]:
        """As many tokens of mlx-lm as ``answer`` has."""
        return greedy_tokens(self.model, prompt, len(answer), answer)

    def load(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> LLM:
        monkeypatch.setattr(build, "SNAPSHOTS", settings.pop("snapshots", SNAPSHOTS))
        wanted = {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "num_kv_blocks": 100,
            "num_state_snapshots": 8,
            "block_size": BLOCK_SIZE,
        }
        return LLM(str(self.path), **(wanted | settings))


def saved(family: str, path: Path) -> Checkpoint:
    tiny_models.save(family, path)
    model, _ = tiny_models.build(family)
    return Checkpoint(family, path, model)


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    return saved(request.param, tmp_path_factory.mktemp(request.param))


def tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, count).tolist()


def run(engine: Engine, **prompts: list[int]) -> dict[str, list[int]]:
    """What each of the requests that the engine has, and of these, is told."""
    told: dict[str, list[int]] = {name: [] for name in prompts}
    for name, prompt in prompts.items():
        engine.add_request(GenerationRequest(name, tuple(prompt), greedy(8)), prompt)
    while engine.has_work:
        for output in engine.step():
            if isinstance(output.item, Delta):
                told.setdefault(output.request_id, []).extend(output.item.token_ids)
        engine.check_integrity()
    return told


@pytest.mark.parametrize("family", RECURRENT)
def test_every_family_draws_mlx_lms_tokens(
    family: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """Preempted, beginning at each border of a block, forked, and behind one that was aborted."""
    checkpoint = saved(family, tmp_path)
    every_border = SnapshotPolicy(interval=BLOCK_SIZE, least_gain=1, answer_interval=BLOCK_SIZE)
    num_kv_blocks = NUM_TIGHT if family != "recurrent_gemma" else NUM_TIGHT_WINDOWS
    llm = checkpoint.load(monkeypatch, snapshots=every_border, num_kv_blocks=num_kv_blocks)
    prompts = [tokens(seed, length) for seed, length in enumerate((1, 9, 24, 30))]
    completions = llm.generate(prompts, greedy(NUM_TOKENS), show_progress=False)
    answers = [completion.token_ids for completion in completions]
    assert answers == [checkpoint.expected(*pair) for pair in zip(prompts, answers, strict=True)]
    assert {len(answer) for answer in answers} == {NUM_TOKENS}
    preemptions = llm.stats().preemptions
    assert preemptions > 0

    llm.reset_prefix_cache()
    last, hits = prompts[-1], []
    run(llm.engine, last=last)
    for shared in (8, 16, 24):
        other = [*last[:shared], *tokens(50 + shared, 4)]
        [completion] = llm.generate([other], greedy(8), show_progress=False)
        assert completion.token_ids == checkpoint.expected(other, completion.token_ids)
        hits.append(completion.num_cached_tokens)
    assert hits == [8, 16, 24]

    forked = forks(llm.engine, prompts[1], 3)
    assert forked == [answers[1][:16]] * 3

    llm.engine.add_request(GenerationRequest("gone", tuple(last), greedy(40)), last)
    for _ in range(4):
        llm.engine.step()
    llm.engine.abort("gone")
    after = tokens(60, 5)
    answer = run(llm.engine, after=after)["after"]
    assert answer == checkpoint.expected(after, answer)
    record_property(
        TABLE,
        (
            "Hybrids in the engine: greedy tokens equal to mlx-lm's",
            family,
            f"{len(prompts)} x {NUM_TOKENS} tokens, {preemptions} preemptions",
            f"hits at {hits}",
            "3 forks",
            "1 abort",
        ),
    )


def forks(engine: Engine, prompt: list[int], count: int) -> list[list[int]]:
    """The 16 tokens that each of a request's samples draws."""
    engine.add_request(GenerationRequest("forks", tuple(prompt), greedy(16), n=count), prompt)
    told: list[list[int]] = [[] for _ in range(count)]
    while engine.has_work:
        for output in engine.step():
            if isinstance(output.item, Delta):
                told[output.item.index] += output.item.token_ids
    return told


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="whole prompts"),
        pytest.param({"max_num_batched_tokens": 5}, id="chunks shorter than a convolution"),
        pytest.param({"num_kv_blocks": NUM_TIGHT}, id="preemption"),
        pytest.param({"num_state_snapshots": 0}, id="no room for snapshots"),
    ],
)
def test_greedy_tokens_are_those_of_mlx_lm(
    checkpoint: Checkpoint, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = checkpoint.load(monkeypatch, **settings)
    prompts = [tokens(seed, length) for seed, length in enumerate((1, 9, 24, 30))]
    for _ in range(2):
        completions = llm.generate(prompts, greedy(NUM_TOKENS), show_progress=False)
        for prompt, completion in zip(prompts, completions, strict=True):
            assert completion.token_ids == checkpoint.expected(prompt, completion.token_ids)
    assert (llm.stats().preemptions > 0) == ("num_kv_blocks" in settings)
    llm.engine.check_integrity()


@pytest.mark.parametrize("shared", [7, 8, 11, 16, 23, 24])
def test_a_prompt_that_parts_anywhere_begins_with_a_snapshot(
    checkpoint: Checkpoint, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each border of a block, and inside one."""
    llm = checkpoint.load(monkeypatch, snapshots=SnapshotPolicy(interval=BLOCK_SIZE, least_gain=1))
    first, rest = tokens(1, 30), tokens(2, 30)
    other = [*first[:shared], *rest[shared:]]
    run(llm.engine, first=first)
    [completion] = llm.generate([other], greedy(16), show_progress=False)
    assert completion.num_cached_tokens == shared // BLOCK_SIZE * BLOCK_SIZE
    assert completion.token_ids == checkpoint.expected(other, completion.token_ids)


def test_samples_begin_with_one_snapshot(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = checkpoint.load(monkeypatch).engine
    prompt = tokens(3, 20)
    forked = forks(engine, prompt, 3)
    assert forked == [checkpoint.expected(prompt, forked[0])] * 3
    assert engine.stats().step_tokens["prefill"] == 20 + 2 * 4


def test_a_slot_has_nothing_left_of_who_was_aborted(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = checkpoint.load(monkeypatch, max_num_seqs=1, num_state_snapshots=0).engine
    prompt = tokens(4, 20)
    engine.add_request(GenerationRequest("gone", tuple(prompt), greedy(40)), prompt)
    for _ in range(6):
        engine.step()
    engine.abort("gone")
    after = tokens(5, 20)
    answer = run(engine, after=after)["after"]
    assert answer == checkpoint.expected(after, answer)


def test_a_snapshot_that_was_evicted_is_computed_again(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = checkpoint.load(monkeypatch, max_num_seqs=1, num_state_snapshots=1)
    prompt = tokens(6, 20)
    cached = []
    for others in ([], [], [tokens(7, 20), tokens(8, 20)]):
        llm.generate(others, greedy(1), show_progress=False)
        [completion] = llm.generate([prompt], greedy(8), show_progress=False)
        assert completion.token_ids == checkpoint.expected(prompt, completion.token_ids)
        cached.append(completion.num_cached_tokens)
    assert cached == [0, 16, 0]
    assert llm.stats().prefix_cache_misses["snapshot_evicted"] == 1


def test_a_request_goes_on_in_another_engine(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = checkpoint.load(monkeypatch).engine
    prompt = tokens(9, 20)
    expected = greedy_tokens(checkpoint.model, prompt, 24)
    resumed = GenerationRequest(
        "a",
        tuple(prompt),
        SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, seed=1),
        resume=(tuple(expected[:13]),),
    )
    engine.add_request(resumed, prompt)
    assert run(engine)["a"] == expected[13:]


def test_a_stale_state_shows_in_the_tokens(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These tests would see it."""
    engine = checkpoint.load(monkeypatch, max_num_seqs=1, num_state_snapshots=0).engine
    run(engine, before=tokens(10, 20))
    start = StateSlots.start

    def stale(states: StateSlots, sequence: Sequence, *args: Any) -> None:
        start(states, sequence, *args)
        assert sequence.state is not None
        sequence.state.read = sequence.state.write

    monkeypatch.setattr(StateSlots, "start", stale)
    prompt = tokens(11, 2)
    answer = run(engine, after=prompt)["after"]
    assert answer != checkpoint.expected(prompt, answer)


async def test_a_chat_begins_with_the_state_before_its_last_message(tmp_path: Path) -> None:
    saved("mamba2", tmp_path)
    backend = MlxBackend()
    config = EngineConfig(model=str(tmp_path), num_kv_blocks=100, max_num_seqs=2, block_size=8)
    await backend.start(config)
    try:
        cached = []
        for question in ("How are you?", "And what is that?"):
            system = {"role": "system", "content": "You are kind. " * 10}
            prompt = ChatPrompt((system, {"role": "user", "content": question}))
            request = GenerationRequest(question, prompt, greedy(2))
            deltas = [one async for one in backend.generate(request) if isinstance(one, Delta)]
            cached.append(deltas[0].num_cached_tokens)
    finally:
        await backend.stop()
    # A token a byte, and one for what begins the prompt and for what ends a message.
    before_question = 1 + len("system: ") + 140 + 1 + len("user: ")
    assert cached == [0, (before_question - TOKENS_AT_A_CUT) // 8 * 8]


def test_slots_are_told(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = checkpoint.load(monkeypatch)
    stats = llm.stats()
    assert (stats.state_slots, stats.state_slots_free) == (12, 12)
    assert stats.state_bytes > 0
    assert stats.state_bytes % 12 == 0


def test_windows_are_for_as_many_sequences_as_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are no slots for all places, windows for the others would be of no use."""
    checkpoint = saved("recurrent_gemma", tmp_path)
    demands: list[Demand] = []
    divided = build.num_kv_blocks

    def noted(groups: list[GroupBytes], demand: Demand, **options: Any) -> tuple[int, ...]:
        demands.append(demand)
        return divided(groups, demand, **options)

    monkeypatch.setattr(build, "num_kv_blocks", noted)
    monkeypatch.setattr(Device, "memory_bytes", 2 * 2**20)
    settings = {"num_kv_blocks": None, "num_state_snapshots": None, "max_num_seqs": 500}
    llm = checkpoint.load(monkeypatch, **settings)
    running = llm.engine.scheduler.max_num_seqs
    assert 1 <= running < 500
    assert [demand.max_num_seqs for demand in demands] == [running]
