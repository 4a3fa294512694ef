"""An engine whose products and attention are those of CUDA, on the emulator: a request's logits are
the same, bit for bit, in any company."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from backend_metal import LLM
from backend_metal.cuda import rows_alike
from backend_metal.device import CPU, registered
from tests.cuda.on_cpu.extension import execution, operators
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.changed_device import changed
from tests.support.backend_metal.kept_logits import answer

PLACES = 6
MOST_TOKENS = 4
OF_THE_CPU = {"RMSNorm", "AddRMSNorm", "RotaryEmbedding", "FloatHeads", "Sum", "SwiGLU"}
"""What stands on a CPU where CUDA has primitives that may be there."""


@dataclass(frozen=True)
class Cut:
    """One way in which company has a request computed."""

    name: str
    budget: int
    num_kv_blocks: int = 100
    prompts: tuple[int, ...] = (70, 3, 40, 17, 33, 81)
    """Of so many tokens; of the last the logits are compared."""
    most_tokens: int = MOST_TOKENS
    shares_prefixes: bool = False
    preempts: bool = False


CUTS = (
    Cut("whole prompts", budget=512),
    Cut("small chunks", budget=PLACES + 3),
    Cut("cached prefixes", budget=60, shares_prefixes=True),
    Cut(
        "preemption",
        budget=48,
        num_kv_blocks=14,
        prompts=(15,) * PLACES,
        most_tokens=30,
        preempts=True,
    ),
)


@pytest.fixture(scope="module")
def device() -> Iterator[str]:
    native = operators()
    path = changed(
        CPU,
        name="emulated",
        attention="emulated",
        operators=native,
        zeros=mx.zeros,
        repeats_graphs=False,
    )
    alike = changed(
        path,
        _own={"one_kernel": True},
        multiply_alike=partial(
            rows_alike.multiply_alike, partial(native.few_rows_product, any_rows=True)
        ),
        origin_multiple=64,
    )
    vars(path)["deterministic"] = lambda: alike
    with (
        pytest.MonkeyPatch.context() as patch,
        registered(path),
        execution(num_cores=6),
    ):
        patch.setattr(rows_alike, "ALIKE", rows_alike.ALIKE | OF_THE_CPU)
        yield "emulated"


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name)
@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_logits_are_the_same_bits_in_any_company(
    family: str, cut: Cut, device: str, tmp_path: Path
) -> None:
    tiny_models.save(family, tmp_path)

    def load(**given: object) -> LLM:
        return LLM(
            str(tmp_path),
            max_num_seqs=PLACES,
            device=device,
            dtype="bfloat16",
            deterministic=True,
            **given,
        )

    random = np.random.default_rng(7)
    prompts = [random.integers(0, 256, length).tolist() for length in cut.prompts]
    prompt = prompts[-1]
    if cut.shares_prefixes:
        # All but a token of it, too, which is then decoded alone.
        prompts = [prompt[:40], prompt, prompts[0], prompts[1], prompt]
    lengths = [int(length) for length in random.integers(1, 3 * MOST_TOKENS, len(prompts))]
    if cut.preempts:
        lengths = [cut.most_tokens] * len(prompts)
    lengths[-1] = cut.most_tokens
    alone, expected = answer(
        load(num_kv_blocks=100, prefix_caching=False), [prompt], lengths[-1:], 0
    )
    crowd = load(
        num_kv_blocks=cut.num_kv_blocks,
        max_num_batched_tokens=cut.budget,
        prefix_caching=cut.shares_prefixes or cut.preempts,
    )
    among, found = answer(crowd, prompts, lengths, len(prompts) - 1)
    assert among == alone
    for stop in expected.keys() & found.keys():
        for row in found[stop]:
            np.testing.assert_array_equal(row, expected[stop][0])
    assert len(expected.keys() & found.keys()) >= cut.most_tokens
    assert (crowd.stats().preemptions > 0) == cut.preempts
