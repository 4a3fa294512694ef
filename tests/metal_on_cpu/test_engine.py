"""The engine on the emulated GPU: the tokens of the CPU path, one lazy graph a step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from backend_metal import LLM, SamplingParams
from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.engine.recorded.repeated import RepeatedModel
from backend_metal.models.paged_model import PagedModel
from tests.metal_on_cpu import host
from tests.metal_on_cpu.engine_device import NAME, metal_on_cpu, path
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.packed_step import Chunk, lazy_forward
from tests.support.instantiations import is_turn_of, marked

# One with each option that a kernel has, and one of another head dim.
VARIED_FAMILIES = ["llama", "gemma2", "gpt_oss"]
FAMILIES = [
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mistral",
    "gemma2-dense",
    "gemma3",
    "gemma3_text",
    "phi3",
    "olmo2",
    "granite",
    # Latents, layers that attend over another one's cache, and chunks.
    "mistral4",
    "gemma4_text",
    "llama4",
]
PROMPT_LENGTHS = (1, 5, 47, 120)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@dataclass(frozen=True)
class Cut:
    """One way to cut the work into steps and blocks."""

    name: str
    block_size: int
    budget: int
    num_kv_blocks: int
    preempts: bool = False


MIXED = Cut("mixed steps", block_size=16, budget=64, num_kv_blocks=60)
CUTS = (
    MIXED,
    Cut("small chunks", block_size=8, budget=16, num_kv_blocks=120),
    Cut("preemption", block_size=8, budget=256, num_kv_blocks=24, preempts=True),
    Cut("large blocks", block_size=32, budget=512, num_kv_blocks=40),
)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with metal_on_cpu():
        yield


def load(checkpoint: Path, cut: Cut, device: str) -> LLM:
    return LLM(
        str(checkpoint),
        max_num_seqs=4,
        max_num_batched_tokens=cut.budget,
        num_kv_blocks=cut.num_kv_blocks,
        block_size=cut.block_size,
        device=device,
    )


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 256, length).tolist() for length in PROMPT_LENGTHS]


def tokens_of(llm: LLM) -> list[list[int]]:
    completions = llm.generate(prompts(), GREEDY, show_progress=False)
    return [completion.token_ids for completion in completions]


def check_greedy_tokens(family: str, cut: Cut, folder: Path) -> None:
    tiny_models.save(family, folder)
    expected = tokens_of(load(folder, cut, "cpu"))
    llm = load(folder, cut, NAME)
    runner: Any = llm.engine._pipeline.runner
    assert isinstance(runner._repeated, RepeatedModel)
    before = llm.stats().attention_launches
    assert tokens_of(llm) == expected
    # Again, now that the prompts are in the prefix cache.
    assert tokens_of(llm) == expected
    after = llm.stats().attention_launches
    assert {name for name in after if after[name] > before.get(name, 0)} == {"metal"}
    assert (llm.stats().preemptions > 0) == cut.preempts
    llm.engine.check_integrity()


def in_ladder(family: str, cut: Cut) -> bool:
    """Families that have each option of the kernels with all cuts, the others with one in turn."""
    return family in VARIED_FAMILIES or is_turn_of(cut, CUTS, FAMILIES.index(family))


@pytest.mark.parametrize(
    ("family", "cut"), marked(itertools.product([*VARIED_FAMILIES, *FAMILIES], CUTS), in_ladder)
)
def test_greedy_tokens_of_every_family_and_cut(family: str, cut: Cut, tmp_path: Path) -> None:
    check_greedy_tokens(family, cut, tmp_path)


def test_a_step_is_one_lazy_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine submits it in two parts, which launch once a layer between them; nothing else
    does."""
    tiny_models.save("llama", tmp_path)
    llm = load(tmp_path, MIXED, NAME)
    host.take_launches()
    launches: list[int] = []
    submit, evaluate = mx.async_eval, mx.eval

    def counted(*arrays: Any) -> None:
        assert not host.take_launches(), "something was launched that was not submitted"
        submit(*arrays)
        mx.synchronize()
        launches.append(len(host.take_launches()))

    def waits(*arrays: Any) -> None:
        evaluate(*arrays)
        assert not host.take_launches(), "something was submitted late"

    monkeypatch.setattr(mx, "async_eval", counted)
    monkeypatch.setattr(mx, "eval", waits)
    for index, prompt in enumerate(prompts()):
        llm._add(str(index), prompt, GREEDY)
    while llm.engine.has_work:
        llm.engine.step()
    layers = tiny_models.config_of("llama")["num_hidden_layers"]
    steps = llm.stats().steps
    assert steps > GREEDY.max_tokens
    assert len(launches) == 2 * steps
    assert all(launches), "a part has no layer"
    assert sum(launches) == layers * steps


def test_a_forward_launches_nothing() -> None:
    model, config = tiny_models.build("llama")
    paged = PagedModel(model, config)
    pool = KVCachePool(paged.layers, num_blocks=8, block_size=8, dtype=mx.float32, path=path())
    host.take_launches()
    chunk = Chunk(np.arange(40, dtype=np.int32), np.arange(5), start=0, end=40)
    logits = lazy_forward(paged, pool, [chunk])
    assert not host.take_launches()
    mx.eval(logits, pool.evaluation_roots())
    assert len(host.take_launches()) == config["num_hidden_layers"]
