"""Recorded steps: which are, how they are packed, and what becomes of one that can't be."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import LLM, SamplingParams  # isort: skip
import mlx.core as mx

from backend_metal.device import CPU, registered
from backend_metal.devices.recording import Forward, Ints
from backend_metal.engine.batch import Batch, GroupTables
from backend_metal.engine.recorded.kept import IDLE_STEPS, MOST_CHUNKS, MOST_DECODES, KeptRecordings
from backend_metal.engine.recorded.shape import CHUNKED_TOKENS, FEWEST_BLOCKS, StepShape
from backend_metal.engine.schedule.step import Step
from backend_metal.engine.schedule.step_pace import StepPace
from deployments.backend import GenerationRequest, Grammar
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.changed_device import changed
from tests.support.backend_metal.rerun import Rerun

PROMPTS = [[*range(first, first + 9)] for first in range(12)]


def batch_of(num_seqs: int, widths: list[int]) -> Batch:
    """``widths``: blocks of a table, by group."""
    rows = np.arange(num_seqs, dtype=np.int32)
    groups = tuple(
        GroupTables(
            slot_mapping=rows + 200 + index,
            block_tables=np.arange(num_seqs * width, dtype=np.int32).reshape(num_seqs, width),
            seq_lens=rows + 1 + index,
        )
        for index, width in enumerate(widths)
    )
    return Batch(
        token_ids=rows - 3,
        positions=rows + 100,
        cu_seqlens_q=np.arange(num_seqs + 1, dtype=np.int32),
        logit_rows=rows,
        read_slots=rows,
        write_slots=rows,
        groups=groups,
    )


@given(
    num_seqs=st.integers(1, 70),
    widths=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    most=st.integers(1, 70),
)
def test_what_is_packed_is_unpacked_and_padded_with_the_last_row(
    num_seqs: int, widths: list[int], most: int
) -> None:
    batch = batch_of(num_seqs, widths)
    shape = StepShape.of(batch, most)
    assert shape is not None
    assert shape.decodes
    assert num_seqs <= shape.num_seqs <= max(num_seqs + 7, 2 * num_seqs - 1)
    for width, widest in zip(widths, shape.max_blocks, strict=True):
        assert width <= widest <= max(FEWEST_BLOCKS, 2 * width - 1)
    token_ids, positions, metadata, logit_rows = shape.unpack(mx.array(shape.pack(batch)))
    rows = np.minimum(np.arange(shape.num_seqs), num_seqs - 1)
    np.testing.assert_array_equal(token_ids, batch.token_ids[rows])
    np.testing.assert_array_equal(positions, batch.positions[rows])
    np.testing.assert_array_equal(logit_rows, np.arange(shape.num_seqs))
    for width, group, one in zip(widths, batch.groups, metadata, strict=True):
        np.testing.assert_array_equal(one.slot_mapping, group.slot_mapping[rows])
        np.testing.assert_array_equal(one.seq_lens, group.seq_lens[rows])
        np.testing.assert_array_equal(one.cu_seqlens_q, np.arange(shape.num_seqs + 1))
        tables = np.asarray(one.block_tables)
        np.testing.assert_array_equal(tables[:, :width], group.block_tables[rows])
        assert not tables[:, width:].any()


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=40).filter(
        lambda lengths: any(length > 1 for length in lengths)
    ),
    widths=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    most=st.integers(1, 70),
)
def test_tokens_that_are_added_to_chunks_are_a_sequence_of_their_own(
    lengths: list[int], widths: list[int], most: int
) -> None:
    num_seqs, num_tokens = len(lengths), sum(lengths)
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    tokens = np.arange(num_tokens, dtype=np.int32)
    decodes = batch_of(num_seqs, widths)
    batch = replace(
        decodes,
        token_ids=tokens - 3,
        positions=tokens + 100,
        cu_seqlens_q=ends,
        groups=tuple(replace(one, slot_mapping=tokens + 200) for one in decodes.groups),
    )
    shape = StepShape.of(batch, most)
    if shape is None:
        assert num_tokens > CHUNKED_TOKENS[-1] or num_seqs >= CHUNKED_TOKENS[-1]
        return
    assert not shape.decodes
    assert shape.num_tokens in CHUNKED_TOKENS
    assert num_seqs < shape.num_seqs <= max(2 * num_seqs, 2)
    token_ids, positions, metadata, logit_rows = shape.unpack(mx.array(shape.pack(batch)))
    np.testing.assert_array_equal(token_ids[:num_tokens], batch.token_ids)
    np.testing.assert_array_equal(positions[:num_tokens], batch.positions)
    assert min(token_ids[num_tokens:].tolist(), default=0) >= 0
    np.testing.assert_array_equal(logit_rows[:num_seqs], ends[1:] - 1)
    num_added = shape.num_tokens - num_tokens
    for width, group, one in zip(widths, batch.groups, metadata, strict=True):
        np.testing.assert_array_equal(one.slot_mapping[:num_tokens], group.slot_mapping)
        assert set(one.slot_mapping[num_tokens:].tolist()) <= {-1}
        np.testing.assert_array_equal(one.cu_seqlens_q[: num_seqs + 1], ends)
        taken = np.diff(np.asarray(one.cu_seqlens_q))[num_seqs:]
        assert taken.tolist() == [0] * (len(taken) - 1) + [num_added]
        np.testing.assert_array_equal(one.seq_lens[:num_seqs], group.seq_lens)
        # For them, too, there is room.
        assert num_added <= one.seq_lens[-1].item() <= 8 * one.block_tables.shape[1]
        tables = np.asarray(one.block_tables)
        np.testing.assert_array_equal(tables[:num_seqs, :width], group.block_tables)
        assert not tables[:num_seqs, width:].any()
        assert not tables[num_seqs:].any()


class Counting(Rerun):
    made: int = 0
    replayed: int = 0

    def __init__(self, forward: Forward, ints: Ints, newest: mx.array, max_drawn: int) -> None:
        type(self).made += 1
        super().__init__(forward, ints, newest, max_drawn)

    def replay(self, ints: Ints, newest: mx.array) -> mx.array:
        type(self).replayed += 1
        return super().replay(ints, newest)


class Refusing:
    def __init__(self, forward: Forward, ints: Ints, newest: mx.array, max_drawn: int) -> None:
        # Which leaves the pool with arrays that are never made.
        forward(mx.array(ints), mx.zeros(max_drawn, mx.int32))
        raise RuntimeError("this device forgets")


class RefusingChunks(Counting):
    def __init__(self, forward: Forward, ints: Ints, newest: mx.array, max_drawn: int) -> None:
        logits = forward(mx.array(ints), mx.zeros(max_drawn, mx.int32))
        if logits.shape[0] > len(PROMPTS):
            # The sequence that holds what was added.
            raise RuntimeError("there is no memory")
        super().__init__(forward, ints, newest, max_drawn)


class RefusingOnce(Counting):
    refused: int = 0

    def __init__(self, forward: Forward, ints: Ints, newest: mx.array, max_drawn: int) -> None:
        if not type(self).refused:
            type(self).refused += 1
            Refusing(forward, ints, newest, max_drawn)
        super().__init__(forward, ints, newest, max_drawn)


@pytest.fixture
def model(tmp_path: Path) -> str:
    tiny_models.save("qwen3", tmp_path)
    return str(tmp_path)


@pytest.fixture
def counting() -> Iterator[type[Counting]]:
    Counting.made = Counting.replayed = 0
    with registered(changed(CPU, name="counts", recorder=Counting)):
        yield Counting


def answers(llm: LLM, **sampling: Any) -> list[tuple[int, ...]]:
    params = SamplingParams(max_tokens=20, ignore_eos=True, seed=3, **sampling)
    completions = llm.generate(PROMPTS, params, show_progress=False)
    return [completion.token_ids for completion in completions]


def test_each_shape_is_recorded_once(model: str, counting: type[Counting]) -> None:
    recorded = LLM(model, device="counts", max_num_seqs=12)
    assert answers(recorded) == answers(LLM(model, max_num_seqs=12))
    # All of them start in one step, whose tokens are 108, and end in another.
    assert counting.made == 2
    assert counting.replayed >= 19
    answers(recorded)
    assert counting.made == 2


def test_nobody_waits_for_a_token_while_the_next_step_is_recorded(
    model: str, counting: type[Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    make = Counting.__init__

    def noted(*arguments: Any) -> None:
        order.append("recorded")
        make(*arguments)

    monkeypatch.setattr(counting, "__init__", noted)
    llm = LLM(model, device="counts", max_num_seqs=12)
    runner: Any = llm.engine._pipeline.runner
    # As where devices have steps wait for them.
    runner.holds_up = False
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    for index, prompt in enumerate(PROMPTS):
        llm.engine.add_request(GenerationRequest(str(index), tuple(prompt), sampling), prompt)
    while llm.engine.has_work:
        if llm.engine.step(lambda outputs: order.append(f"{len(outputs)} early")):
            order.append("in time")
    # The prompts, a token of each, and from then on nothing new.
    assert order == ["recorded", "12 early", "recorded", *["in time"] * 3]
    llm.engine.check_integrity()


@pytest.mark.parametrize("together", [True, False])
def test_forced_tokens_are_computed_one_by_one_where_others_would_wait(
    model: str, counting: type[Counting], monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """Rows of a recorded step, then, from which nothing is drawn."""
    monkeypatch.setattr(StepPace, "pays_together", lambda *arguments: together)
    grammar = Grammar("regex", "[ab]( five words that nobody draws [ab]){3}")
    how = {"temperature": 1.0, "seed": 3, "max_tokens": 120}
    half = [SamplingParams(**how, grammar=grammar if i % 2 else None) for i in range(12)]
    recorded, plain = (LLM(model, device=device, max_num_seqs=12) for device in ("counts", "cpu"))
    before = counting.replayed
    found = [one.token_ids for one in recorded.generate(PROMPTS, half, show_progress=False)]
    taken = recorded.engine.stats().steps
    assert found == [one.token_ids for one in plain.generate(PROMPTS, half, show_progress=False)]
    # Three jumps of all together have more tokens than are recorded.
    assert taken - (counting.replayed - before) == (3 if together else 0)


def test_a_new_cache_has_new_recordings(model: str, counting: type[Counting]) -> None:
    llm = LLM(model, device="counts", max_num_seqs=12)
    before = answers(llm)
    runner: Any = llm.engine._pipeline.runner
    llm.reset_prefix_cache()
    runner.reset()
    assert answers(llm) == before
    assert counting.made == 4


class Kept:
    """A recording that nobody replays."""

    def replay(self, ints: Ints, newest: mx.array) -> mx.array:
        raise NotImplementedError


@pytest.mark.parametrize(("num_tokens", "most"), [(1, MOST_DECODES), (64, MOST_CHUNKS)])
def test_a_recording_gives_way_once_it_is_not_used_any_more(num_tokens: int, most: int) -> None:
    shapes = [StepShape(seqs, max(seqs, num_tokens), (16,)) for seqs in range(1, most + 2)]
    of_the_other_kind = StepShape(3, 3 if num_tokens > 1 else 64, (16,))
    *first, last = shapes
    kept = KeptRecordings()
    for shape in first:
        assert kept.has_room(shape)
        kept.add(shape, Kept())
    assert not kept.has_room(last)
    assert kept.has_room(of_the_other_kind)
    for _ in range(IDLE_STEPS + 1):
        assert kept.get(last) is None
        for shape in first[1:]:
            assert kept.get(shape) is not None
    assert kept.has_room(last)
    kept.add(last, Kept())
    assert set(kept.shapes) == set(shapes[1:])
    assert not kept.has_room(first[0])
    assert kept.num_made == most + 1
    kept.clear()
    assert not kept.shapes


def test_what_there_is_no_room_for_runs_as_it_is(model: str, counting: type[Counting]) -> None:
    llm = LLM(model, device="counts", max_num_seqs=400, num_kv_blocks=4000)
    for count in range(8, 8 * (MOST_DECODES + 3), 8):
        params = SamplingParams(max_tokens=4, ignore_eos=True)
        llm.generate([[1, 2, 3]] * count, params, show_progress=False)
    runner: Any = llm.engine._pipeline.runner
    assert sum(shape.decodes for shape in runner._recorded._kept.shapes) == MOST_DECODES


def test_the_time_of_a_step_that_is_recorded_tells_nothing(
    model: str, counting: type[Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []
    observe = StepPace.observe

    def spied(pace: StepPace, step: Step, seconds: float) -> None:
        seen.append((step.num_tokens, step.is_typical))
        observe(pace, step, seconds)

    monkeypatch.setattr(StepPace, "observe", spied)
    llm = LLM(model, device="counts", max_num_seqs=12)
    answers(llm)
    # The first is recorded, and so is the second, for which the first has to wait.
    assert seen[:3] == [(108, False), (12, False), (12, True)]
    assert all(is_typical for _, is_typical in seen[2:])
    assert llm.engine.scheduler.pace.decode_times.seconds_of(12) is not None


def test_what_cant_be_recorded_runs_as_before(model: str, caplog: pytest.LogCaptureFixture) -> None:
    device = changed(CPU, name="forgets", recorder=Refusing)
    with registered(device), caplog.at_level(logging.WARNING):
        assert answers(LLM(model, device="forgets")) == answers(LLM(model))
    # There is one step of prompts.
    assert [record.message for record in caplog.records if "recorded" in record.message] == [
        "steps of decodes are not recorded, and slower: this device forgets"
    ]


def test_decodes_are_recorded_where_there_is_no_memory_for_chunks(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    RefusingChunks.made = RefusingChunks.replayed = 0
    device = changed(CPU, name="has little", recorder=RefusingChunks)
    with registered(device), caplog.at_level(logging.WARNING):
        recorded = LLM(model, device="has little", max_num_seqs=len(PROMPTS))
        plain = LLM(model, max_num_seqs=len(PROMPTS))
        for _ in range(4):
            recorded.reset_prefix_cache()
            assert answers(recorded) == answers(plain)
    assert RefusingChunks.replayed > 0
    assert [record.message for record in caplog.records if "recorded" in record.message] == [
        "steps of chunks are not recorded, and slower: there is no memory"
    ]


def test_a_failure_to_record_may_be_an_accident(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    RefusingOnce.made = RefusingOnce.replayed = RefusingOnce.refused = 0
    device = changed(CPU, name="forgets once", recorder=RefusingOnce)
    with registered(device), caplog.at_level(logging.WARNING):
        assert answers(LLM(model, device="forgets once")) == answers(LLM(model))
    assert RefusingOnce.replayed > 0
    assert not [record for record in caplog.records if "recorded" in record.message]


@pytest.mark.parametrize(
    ("family", "is_recorded"), [("deepseek_v3", True), ("deepseek_v32", False)]
)
def test_steps_that_are_read_on_the_host_are_not_recorded(
    family: str, is_recorded: bool, counting: type[Counting], tmp_path: Path
) -> None:
    tiny_models.save(family, tmp_path)
    recorded = answers(LLM(str(tmp_path), device="counts", max_num_seqs=12), temperature=0.0)
    assert recorded == answers(LLM(str(tmp_path), max_num_seqs=12), temperature=0.0)
    assert (counting.made > 0) == is_recorded
