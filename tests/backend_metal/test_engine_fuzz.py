"""Every sequence draws its own tokens, whatever happens to others of its request and beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import LLM  # isort: skip
from backend_metal.engine.engine import MAX_CONSECUTIVE_FAILURES, Engine
from backend_metal.engine.requests.request_state import SEED_STRIDE
from backend_metal.engine.schedule.snapshot_borders import SnapshotPolicy
from deployments.backend import Delta, GenerationRequest, SamplingParams
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.engine_harness import (
    VOCAB_SIZE,
    byte_tokenizer,
    make_engine,
    request,
    run,
    token_ids,
)
from tests.support.backend_metal.stub_runner import (
    expected_tokens,
    forced_after,
    forced_at_first,
)
from tests.support.fuzzing import fuzz

PREFIXES: tuple[list[int], ...] = ([], [1] * 8, [1] * 16, [1] * 8 + [2] * 8)
Tokens = dict[tuple[str, int], list[int]]
"""By request and index."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    path: Path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)
    return LLM(str(path), num_kv_blocks=9, max_num_seqs=6, max_num_batched_tokens=48)


prompts = st.builds(
    lambda prefix, suffix: [*prefix, *suffix],
    st.sampled_from(PREFIXES),
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
)


windows = st.just({}) | st.dictionaries(st.integers(1, 30), st.integers(6, 14), max_size=2)
"""Of groups of layers, each with how many blocks it has."""


@fuzz(150)
@given(data=st.data())
def test_books_and_tokens_are_right_in_a_pool_that_is_too_small(tokenizer: Any, data: Any) -> None:
    max_num_seqs = data.draw(st.integers(1, 6), "max_num_seqs")
    num_spare_slots = data.draw(st.none() | st.integers(0, 6), "num_spare_slots")
    engine, runner = make_engine(
        tokenizer,
        num_blocks=data.draw(st.integers(6, 14), "num_blocks"),
        windows=data.draw(windows, "windows"),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + data.draw(st.integers(0, 40), "budget"),
        prefix_caching=data.draw(st.booleans(), "prefix_caching"),
        # Of a model with recurrent layers.
        num_state_slots=0 if num_spare_slots is None else max_num_seqs + num_spare_slots,
        snapshots=SnapshotPolicy(
            data.draw(st.sampled_from([8, 24, 2048]), "interval"),
            data.draw(st.sampled_from([1, 9, 64]), "least_gain"),
            data.draw(st.sampled_from([8, 64]), "answer_interval"),
        ),
    )
    ends = tuple(data.draw(st.sets(st.integers(0, VOCAB_SIZE - 1), max_size=4), "ends"))
    forces = data.draw(st.booleans(), "forces")
    added: dict[str, tuple[list[int], int, int]] = {}
    items: dict[str, list[Delta | Exception]] = {}
    ended: set[str] = set()

    paused: set[str] = set()
    quiet: set[str] = set()
    """Paused, and none of their tokens is under way any more."""
    failures_in_a_row = 0

    def step() -> None:
        nonlocal failures_in_a_row
        if engine.has_work:
            failures_in_a_row = failures_in_a_row + 1 if runner.fails_at else 0
            for output in engine.step():
                assert output.request_id not in quiet
                items[output.request_id].append(output.item)
        engine.check_integrity()
        quiet.update(paused)

    for number in range(data.draw(st.integers(1, 6), "requests")):
        name, prompt = str(number), data.draw(prompts, "prompt")
        n, length = data.draw(st.integers(1, 4), "n"), data.draw(st.integers(1, 12), "length")
        added[name], items[name] = (prompt, n, min(length, engine.max_model_len - len(prompt))), []
        matcher: Any = StubMatcher(forced_at_first(prompt)) if forces else None
        engine.add_request(
            *request(name, prompt, n=n, max_tokens=length, stop_token_ids=ends), matcher=matcher
        )
        for _ in range(data.draw(st.integers(0, 4), "steps")):
            step()
        match data.draw(
            st.sampled_from(["", "", "abort", "fail", "reset", "pause", "resume"]), "event"
        ):
            case "abort":
                ended.add(victim := data.draw(st.sampled_from([*added]), "victim"))
                engine.abort(victim)
            case "fail" if failures_in_a_row < MAX_CONSECUTIVE_FAILURES - 1:
                runner.fails_at = data.draw(st.sampled_from(["forward", "sample", "wait"]), "where")
                step()
                runner.fails_at = ""
            case "reset":
                engine.reset_prefix_cache()
            case "pause":
                paused.add(victim := data.draw(st.sampled_from([*added]), "victim"))
                engine.pause(victim)
            case "resume" if paused:
                paused.remove(victim := data.draw(st.sampled_from(sorted(paused)), "victim"))
                quiet.discard(victim)
                engine.resume(victim)
        engine.check_integrity()
    for name in sorted(paused):
        engine.resume(name)
    paused.clear()
    quiet.clear()
    while engine.has_work:
        step()
    for name, (prompt, n, length) in added.items():
        failed = any(isinstance(item, Exception) for item in items[name])
        for index in range(n):
            drawn, expected = (
                token_ids(items[name], index),
                up_to_end(expected_tokens(prompt, length, VOCAB_SIZE, forces=forces), ends),
            )
            assert drawn == (expected[: len(drawn)] if failed or name in ended else expected)


def up_to_end(tokens: list[int], ends: tuple[int, ...]) -> list[int]:
    stops = [number for number, token in enumerate(tokens) if token in ends]
    return tokens[: stops[0] + 1] if stops else tokens


class StubMatcher:
    """Stands in for a grammar's matcher: any token may come, and forces what the stub says."""

    is_complete = False
    left_out = ()

    def __init__(self, begins_with: list[int]) -> None:
        self._left = list(begins_with)

    def copy(self) -> StubMatcher:
        return StubMatcher(self._left)

    def free_text(self) -> None:
        """Every token moves it."""

    def advance(self, token_id: int) -> None:
        if self._left:
            assert self._left.pop(0) == token_id
        else:
            self._left = forced_after(token_id)

    def forced(self) -> list[int]:
        return list(self._left)


def draw_all(engine: Engine, requests: list[GenerationRequest]) -> Tokens:
    for item in requests:
        assert isinstance(item.prompt, tuple)
        engine.add_request(item, list(item.prompt))
    items = run(engine)
    return {
        (item.request_id, index): token_ids(items[item.request_id], index)
        for item in requests
        for index in range(item.n)
    }


def alone(item: GenerationRequest, index: int) -> GenerationRequest:
    """A request for what ``item``'s sequence ``index`` draws."""
    assert item.sampling.seed is not None
    seed = (item.sampling.seed + index * SEED_STRIDE + 2**63) % 2**64 - 2**63
    sampling = SamplingParams(
        temperature=1.0, max_tokens=item.sampling.max_tokens, ignore_eos=True, seed=seed
    )
    return GenerationRequest(f"{item.request_id}/{index}", item.prompt, sampling)


@fuzz(20)
@given(
    wanted=st.lists(
        st.tuples(
            st.sampled_from([1, 15, 16, 17, 33, 48]),
            st.integers(1, 4),
            st.integers(-(2**63), 2**63 - 1),
            st.integers(1, 24),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_samples_of_one_request_are_those_of_requests_of_their_own(
    llm: LLM, wanted: list[tuple[int, int, int, int]]
) -> None:
    requests = [
        GenerationRequest(
            str(number),
            tuple(range(1, length + 1)),
            SamplingParams(temperature=1.0, max_tokens=max_tokens, ignore_eos=True, seed=seed),
            n=n,
        )
        for number, (length, n, seed, max_tokens) in enumerate(wanted)
    ]
    llm.reset_prefix_cache()
    together = draw_all(llm.engine, requests)
    again = draw_all(llm.engine, requests)
    assert again == together
    for item in requests:
        for index in range(item.n):
            llm.reset_prefix_cache()
            single = alone(item, index)
            assert (
                draw_all(llm.engine, [single])[single.request_id, 0]
                == together[item.request_id, index]
            )


def test_the_samples_above_are_preempted(llm: LLM) -> None:
    before = llm.stats().preemptions
    sampling = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True, seed=3)
    draw_all(llm.engine, [GenerationRequest("a", tuple(range(1, 49)), sampling, n=4)])
    assert llm.stats().preemptions > before
