"""The engine's greedy tokens are mlx-lm's, on the same weights, however the work is cut up."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from backend_metal import LLM, SamplingParams
from backend_metal.attention.operators import default_path
from deployments.backend import Delta, GenerationRequest
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.mlx_lm_greedy import greedy_tokens
from tests.support.instantiations import is_turn_of, marked

# One with each option of attention, and head dims without kernels and with the widest;
# ``test_engine_families`` has all.
FAMILIES = [
    "llama",
    "qwen3_moe",
    # mlx-lm leaves out Gemma 2's window, so it is compared where there is none.
    "gemma2-dense",
    "gemma3_text",
    "gpt_oss",
    "llama-16",
    "qwen3-512",
]
OTHER_FAMILIES = [
    *("qwen2", "qwen3", "mistral", "gemma3", "phi3", "olmo2", "granite", "qwen3-32", "llama-48")
]
PROMPT_LENGTHS = (1, 5, 16, 47, 160, 300)
NUM_TOKENS = 32
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


@dataclass(frozen=True)
class Cut:
    """One way to cut the work into steps and blocks."""

    name: str
    block_size: int
    budget: int
    num_kv_blocks: int
    max_num_seqs: int = 6
    prefix_caching: bool = True
    preempts: bool = False
    attention: Literal["auto", "reference"] = "auto"

    def __str__(self) -> str:
        return self.name


CUTS = (
    Cut("whole prompts", block_size=16, budget=512, num_kv_blocks=120),
    Cut("small chunks", block_size=8, budget=16, num_kv_blocks=240, prefix_caching=False),
    Cut("queue", block_size=32, budget=64, num_kv_blocks=60, max_num_seqs=3),
    Cut("preemption", block_size=8, budget=256, num_kv_blocks=48, preempts=True),
    Cut("reference", block_size=16, budget=64, num_kv_blocks=120, attention="reference"),
)


@dataclass(frozen=True)
class Checkpoint:
    family: str
    path: Path
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module")
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    family: str = request.param
    path = tmp_path_factory.mktemp(family)
    tiny_models.save(family, path)
    model, _ = tiny_models.build(family)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 256, length).tolist() for length in PROMPT_LENGTHS]
    llm = LLM(str(path), max_num_seqs=6, num_kv_blocks=120, block_size=16)
    answers = llm.generate(prompts, GREEDY, show_progress=False)
    expected = [
        greedy_tokens(model, prompt, NUM_TOKENS, answer.token_ids)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    return Checkpoint(family, path, prompts, expected)


def load(checkpoint: Checkpoint, cut: Cut) -> LLM:
    return LLM(
        str(checkpoint.path),
        max_num_seqs=cut.max_num_seqs,
        max_num_batched_tokens=cut.budget,
        num_kv_blocks=cut.num_kv_blocks,
        block_size=cut.block_size,
        prefix_caching=cut.prefix_caching,
        attention=cut.attention,
    )


def is_usual(family: str, cut: Cut) -> bool:
    """One family with all cuts, the others with one in turn."""
    if family not in FAMILIES:
        return False
    turn = FAMILIES.index(family)
    return turn == 0 or is_turn_of(cut, CUTS, turn)


@pytest.mark.parametrize(
    ("checkpoint", "cut"),
    marked(itertools.product([*FAMILIES, *OTHER_FAMILIES], CUTS), is_usual),
    indirect=["checkpoint"],
    ids=str,
)
def test_greedy_tokens_are_those_of_mlx_lm(checkpoint: Checkpoint, cut: Cut) -> None:
    llm = load(checkpoint, cut)
    before = llm.stats().attention_launches
    for repeat in range(2 if cut.prefix_caching and not cut.preempts else 1):
        completions = llm.generate(checkpoint.prompts, GREEDY, show_progress=False)
        assert [completion.token_ids for completion in completions] == checkpoint.expected
        cached = [completion.num_cached_tokens for completion in completions]
        if repeat:
            assert cached == [
                (length - 1) // cut.block_size * cut.block_size for length in PROMPT_LENGTHS
            ]
    assert (llm.stats().preemptions > 0) == cut.preempts
    llm.engine.check_integrity()
    without_kernels = checkpoint.family in tiny_models.WITHOUT_KERNELS
    by_reference = without_kernels or cut.attention == "reference"
    path = "reference" if by_reference else default_path()
    after = llm.stats().attention_launches
    assert {name for name in after if after[name] > before[name]} == {path}


@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
def test_greedy_samples_of_one_request_share_its_prompt(checkpoint: Checkpoint) -> None:
    llm = load(checkpoint, CUTS[0])
    prompt, expected = checkpoint.prompts[3], checkpoint.expected[3]
    llm.engine.add_request(GenerationRequest("request", tuple(prompt), GREEDY, n=3), prompt)
    tokens: list[list[int]] = [[], [], []]
    most_held = 0
    while llm.engine.has_work:
        for output in llm.engine.step():
            if isinstance(output.item, Delta):
                tokens[output.item.index] += output.item.token_ids
        pool = llm.engine.scheduler.groups[0].pool
        most_held = max(most_held, pool.num_blocks - pool.num_free)
    assert tokens == [expected] * 3
    shared = (len(prompt) - 1) // 16
    own = -(-(len(prompt) + NUM_TOKENS) // 16) - shared
    assert most_held <= shared + 3 * own
