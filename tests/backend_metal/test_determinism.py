"""``engine.deterministic``: the logits of a request are the same, bit for bit, in any company."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx_lm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import LLM
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.kept_logits import answer
from tests.support.fuzzing import fuzz
from tests.support.instantiations import is_turn_of, marked

PLACES = 12
MOST_TOKENS = 10


@dataclass(frozen=True)
class Cut:
    """One way in which company has a request computed."""

    name: str
    budget: int
    num_kv_blocks: int = 200
    prefix_caching: bool = True
    shares_prefixes: bool = False
    preempts: bool = False

    def __str__(self) -> str:
        return self.name


CUTS = (
    Cut("whole prompts", budget=1024, prefix_caching=False),
    Cut("small chunks", budget=PLACES + 1, prefix_caching=False),
    Cut("cached prefixes", budget=100, shares_prefixes=True),
    Cut("preemption", budget=64, num_kv_blocks=16, preempts=True),
)
MODELS: dict[str, dict[str, str]] = {
    "qwen3": {},
    "qwen3 in bfloat16": {"dtype": "bfloat16"},
    "qwen3 in float16": {"dtype": "float16"},
    "qwen3 in 4 bits": {},
    # With windows, sinks and experts; latents; recurrent layers.
    "gemma3": {},
    "gpt_oss": {},
    "deepseek_v3": {},
    "qwen3_next": {},
}


class Model:
    def __init__(self, name: str, folder: Path) -> None:
        tiny_models.save(name.split()[0], folder)
        if "bits" in name:
            quantized = folder / "quantized"
            mlx_lm.convert(str(folder), str(quantized), quantize=True, q_bits=4, q_group_size=32)
            folder = quantized
        self._folder, self._settings = str(folder), MODELS[name]
        self.alone = self._load(num_kv_blocks=200, prefix_caching=False)

    def crowd(self, cut: Cut) -> LLM:
        return self._load(
            max_num_batched_tokens=cut.budget,
            num_kv_blocks=cut.num_kv_blocks,
            prefix_caching=cut.prefix_caching,
        )

    def _load(self, **given: Any) -> LLM:
        return LLM(
            self._folder,
            max_num_seqs=PLACES,
            device="cpu",
            deterministic=True,
            **self._settings,
            **given,
        )


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(request.param, tmp_path_factory.mktemp("model"))


def is_usual(name: str, cut: Cut) -> bool:
    """One model with all cuts, the others with two in turn."""
    turn = [*MODELS].index(name)
    return turn == 0 or is_turn_of(cut, CUTS, turn) or is_turn_of(cut, CUTS, turn + 2)


@pytest.mark.parametrize(
    ("model", "cut"), marked(itertools.product(MODELS, CUTS), is_usual), indirect=["model"], ids=str
)
def test_logits_are_the_same_bits_in_any_company(model: Model, cut: Cut) -> None:
    crowd = model.crowd(cut)

    @fuzz(4, quick=1)
    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed: int) -> None:
        random = np.random.default_rng(seed)

        def tokens(most: int) -> list[int]:
            return random.integers(0, 256, int(random.integers(1, most))).tolist()

        prompts = [tokens(90) for _ in range(PLACES)]
        index = int(random.integers(PLACES))
        prompt = prompts[index]
        if cut.shares_prefixes:
            # Whole blocks of them, and once all but a token, which is then decoded alone.
            prompts = [prompt[: int(random.integers(len(prompt)))] + one for one in prompts]
            prompts[index] = prompt
            prompts.insert(0, prompt)
            index += 1
        lengths = random.integers(1, 2 * MOST_TOKENS, len(prompts)).tolist()
        lengths[index] = MOST_TOKENS
        alone, expected = answer(model.alone, [prompt], [MOST_TOKENS], 0)
        among, found = answer(crowd, prompts, lengths, index)
        assert among == alone
        # A token that is computed behind the last one is dropped.
        assert expected.keys() >= found.keys() - {len(prompt) + MOST_TOKENS}
        for stop in expected.keys() & found.keys():
            for row in found[stop]:
                np.testing.assert_array_equal(row, expected[stop][0])

    check()
    assert (crowd.stats().preemptions > 0) == cut.preempts


def test_without_it_a_token_that_is_computed_again_may_differ(tmp_path: Path) -> None:
    """What the setting is for: it has something to do."""
    tiny_models.save("qwen3", tmp_path)
    prompt = list(range(2, 35))
    for deterministic in (False, True):
        llm = LLM(str(tmp_path), num_kv_blocks=8, device="cpu", deterministic=deterministic)
        _, whole = answer(llm, [prompt], [1], 0)
        # All but the last token is found.
        _, again = answer(llm, [prompt], [1], 0)
        assert whole.keys() == again.keys() == {len(prompt)}
        (row,), (other,) = whole[len(prompt)], again[len(prompt)]
        assert np.array_equal(row, other) == deterministic


def test_a_path_that_depends_on_the_number_of_rows_is_refused(tmp_path: Path) -> None:
    tiny_models.save("qwen3", tmp_path)
    with pytest.raises(ValueError, match=r"engine\.deterministic must be false where plain MLX"):
        LLM(str(tmp_path), num_kv_blocks=8, deterministic=True, attention="reference", device="cpu")


def test_a_model_that_chooses_keys_is_refused(tmp_path: Path) -> None:
    tiny_models.save("deepseek_v32", tmp_path)
    with pytest.raises(
        ValueError, match=r"engine\.deterministic must be false .* sparse attention"
    ):
        LLM(str(tmp_path), num_kv_blocks=8, deterministic=True, device="cpu")
