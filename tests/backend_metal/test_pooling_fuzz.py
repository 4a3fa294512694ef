"""Whatever happens beside it, an input's vector is its own, and no block is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import LLM, SamplingParams
from backend_metal.engine.engine import MAX_CONSECUTIVE_FAILURES
from backend_metal.engine.requests.pooled import id_of_input
from deployments.backend import GenerationRequest, Pooled, PoolingInput, PoolingRequest
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.pooling_files import write_pooling_files
from tests.support.fuzzing import fuzz

PROMPTS = [[1] * 8 + [2] * length for length in (0, 1, 7, 8, 9, 30)] + [[3], [4, 5, 6]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


class Breaker:
    place: str = ""

    def fail(self, place: str) -> None:
        if self.place == place:
            self.place = ""
            raise RuntimeError("injected")


class Breaking:
    """The engine's runner, or what it submitted, which fails when it is told to: before the model,
    before the tokens are drawn, or behind."""

    def __init__(self, made: Any, breaker: Breaker) -> None:
        self._made = made
        self._breaker = breaker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def forward(self, *arguments: Any) -> Any:
        self._breaker.fail("forward")
        return Breaking(self._made.forward(*arguments), self._breaker)

    def sample(self) -> Any:
        self._breaker.fail("sample")
        return Breaking(self._made.sample(), self._breaker)

    def wait(self) -> Any:
        self._breaker.fail("wait")
        return self._made.wait()


class Model:
    def __init__(self, directory: Path, pooling: str) -> None:
        tiny_models.save("qwen3", directory)
        write_pooling_files(directory, pooling)
        self.llm = LLM(
            str(directory),
            num_kv_blocks=8,
            block_size=8,
            max_num_seqs=4,
            max_num_batched_tokens=14,
            device="cpu",
        )
        self.breaker = Breaker()
        pipeline: Any = self.llm.engine._pipeline
        pipeline.runner = Breaking(pipeline.runner, self.breaker)
        network, _ = tiny_models.build("qwen3")
        pool = {"last": lambda rows: rows[-1], "mean": np.mean, "cls": lambda rows: rows[0]}
        self.wanted = []
        for prompt in PROMPTS:
            rows = np.array(network.model(mx.array([prompt]))[0])
            vector = pool[pooling](rows, axis=0) if pooling == "mean" else pool[pooling](rows)
            self.wanted.append(vector / np.linalg.norm(vector))


@pytest.fixture(scope="module", params=["last", "mean", "cls"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp(request.param), request.param)


@fuzz(40)
@given(data=st.data())
def test_vectors_are_right_in_a_pool_that_is_too_small(model: Model, data: Any) -> None:
    engine, breaker = model.llm.engine, model.breaker
    # Each example begins with an engine that has neither failed of late nor a cache.
    model.llm.embed([[9]])
    model.llm.reset_prefix_cache()
    request = PoolingRequest("r", tuple(PoolingInput(tuple(one), "x") for one in PROMPTS))
    chosen = data.draw(st.permutations(range(len(PROMPTS))), "order")
    made: dict[int, np.ndarray] = {}
    failed: set[str] = set()
    aborted: set[str] = set()
    failures = 0

    def step() -> None:
        nonlocal failures
        if not engine.has_work:
            return
        failures = failures + 1 if breaker.place else 0
        for output in engine.step():
            if isinstance(output.item, Pooled):
                made[output.item.index] = output.item.values
            elif isinstance(output.item, Exception):
                failed.add(output.request_id)
        engine.check_integrity()

    for number, index in enumerate(chosen):
        engine.add_input(request, index, PROMPTS[index])
        if data.draw(st.booleans(), "with a request that generates"):
            prompt = [number + 1] * data.draw(st.integers(1, 30), "length")
            generation = GenerationRequest(f"g{number}", tuple(prompt), GREEDY)
            engine.add_request(generation, prompt)
        for _ in range(data.draw(st.integers(0, 2), "steps")):
            step()
        events = ["", "", "abort", "forward", "sample", "wait", "preempt"]
        match data.draw(st.sampled_from(events), "event"):
            case "abort":
                aborted.add(victim := id_of_input("r", data.draw(st.sampled_from(chosen))))
                engine.abort(victim)
            case ("forward" | "sample" | "wait") as place if (
                failures < MAX_CONSECUTIVE_FAILURES - 1
            ):
                breaker.place = place
                step()
                breaker.place = ""
            case "preempt":
                engine.scheduler.preempt_all()
        engine.check_integrity()
    while engine.has_work:
        step()
    engine.check_integrity()
    for index, vector in made.items():
        np.testing.assert_allclose(vector, model.wanted[index], rtol=1e-3, atol=1e-4)
    ended = {id_of_input("r", index) for index in made} | failed | aborted
    assert {id_of_input("r", index) for index in range(len(PROMPTS))} <= ended


def test_the_inputs_above_are_cut_and_preempted(model: Model) -> None:
    engine = model.llm.engine
    preemptions = engine.scheduler.num_preemptions
    long = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    engine.add_request(GenerationRequest("g", (1,) * 10, long, n=3), [1] * 10)
    for _ in range(4):
        engine.step()
    request = PoolingRequest("r", (PoolingInput(tuple(PROMPTS[5]), "x"),), priority=1)
    engine.add_input(request, 0, PROMPTS[5])
    made = []
    while engine.has_work:
        made += [one.item for one in engine.step() if isinstance(one.item, Pooled)]
        engine.check_integrity()
    assert engine.scheduler.num_preemptions > preemptions
    np.testing.assert_allclose(made[0].values, model.wanted[5], rtol=1e-3, atol=1e-4)
