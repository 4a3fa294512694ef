"""Every supported family of attention layers in an engine: greedy tokens are mlx-lm's through
preemptions, prefix hits at every border of a block, forks and aborts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backend_metal import LLM, SamplingParams
from backend_metal.models.families.table import FAMILIES
from deployments.backend import Delta, GenerationRequest
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.mlx_lm_greedy import greedy_tokens
from tests.support.instantiations import marked

BLOCK_SIZE = 8
PROMPT_LENGTHS = (3, 21, 41)
NUM_TOKENS = 24
ATTENDING = {name for name, family in FAMILIES.items() if family.recurrent is None}
# Gemma 2's window is one that mlx-lm ignores.
LIKE_MLX_LM = sorted(ATTENDING - {"gemma2"} | {"gemma2-dense"})


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


class Model:
    """A family's checkpoint and what mlx-lm says to its prompts."""

    def __init__(self, family: str, path: Path) -> None:
        tiny_models.save(family, path)
        self._network, _ = tiny_models.build(family)
        self.path = path
        rng = np.random.default_rng(1)
        self.prompts = [rng.integers(0, 256, length).tolist() for length in PROMPT_LENGTHS]

    def expected(self, prompt: list[int], answer: list[int]) -> list[int]:
        """As many tokens of mlx-lm as ``answer`` has."""
        return greedy_tokens(self._network, prompt, len(answer), answer)

    def load(self, num_kv_blocks: int) -> LLM:
        return LLM(
            str(self.path),
            max_num_seqs=4,
            max_num_batched_tokens=24,
            num_kv_blocks=num_kv_blocks,
            block_size=BLOCK_SIZE,
        )


# One for each way in which mlx-lm's code is adapted, and those with windows and sinks;
# ``test_models_parity`` has the logits of all.
USUAL = {*{FAMILIES[name]: name for name in sorted(ATTENDING - {"gemma2"})}.values()} | {
    "gemma2-dense",
    "gemma3_text",
    "gpt_oss",
}


@pytest.mark.parametrize(
    "family", marked(((family,) for family in LIKE_MLX_LM), lambda family: family in USUAL)
)
def test_greedy_tokens_are_those_of_mlx_lm(family: str, tmp_path: Path) -> None:
    model = Model(family, tmp_path)
    llm = model.load(num_kv_blocks=14)
    completions = llm.generate(model.prompts, greedy(NUM_TOKENS), show_progress=False)
    answers = [completion.token_ids for completion in completions]
    assert answers == [model.expected(*pair) for pair in zip(model.prompts, answers, strict=True)]
    assert {len(answer) for answer in answers} == {NUM_TOKENS}
    assert llm.stats().preemptions > 0

    check_hits_at_every_border(llm, model)
    check_fork_beside_an_abort(llm, model.prompts[1], answers[1])
    llm.engine.check_integrity()


def check_hits_at_every_border(llm: LLM, model: Model) -> None:
    """Prompts that begin like the longest one, and part from it at each border."""
    longest = model.prompts[-1]
    llm.reset_prefix_cache()
    llm.generate([longest], greedy(1), show_progress=False)
    for border in range(BLOCK_SIZE, len(longest), BLOCK_SIZE):
        prompt = [*longest[:border], (longest[border] + 1) % 256, 7, 7]
        (completion,) = llm.generate([prompt], greedy(4), show_progress=False)
        assert completion.num_cached_tokens == border
        assert completion.token_ids == model.expected(prompt, completion.token_ids)


def check_fork_beside_an_abort(llm: LLM, prompt: list[int], expected: list[int]) -> None:
    engine = llm.engine
    engine.add_request(GenerationRequest("gone", tuple(prompt), greedy(NUM_TOKENS)), prompt)
    for _ in range(5):
        engine.step()
    engine.add_request(GenerationRequest("fork", tuple(prompt), greedy(12), n=2), prompt)
    tokens: list[list[int]] = [[], []]
    engine.abort("gone")
    while engine.has_work:
        for output in engine.step():
            if isinstance(output.item, Delta) and output.request_id == "fork":
                tokens[output.item.index] += output.item.token_ids
    assert tokens == [expected[:12]] * 2
