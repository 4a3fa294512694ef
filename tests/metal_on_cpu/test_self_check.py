"""The check at start, over the shipped Metal kernels and dispatch code on the emulator."""

from __future__ import annotations

import itertools
import logging
import re
from pathlib import Path

import mlx.core as mx
import pytest

from backend_metal import LLM, SamplingParams
from backend_metal.attention.checks import BLOCK_SIZES, DTYPES
from backend_metal.attention.head_dims import HEAD_DIMS
from backend_metal.attention.kv_cache import LayerAttention, LayerCacheSpec
from backend_metal.attention.self_check import STEPS, check_path
from tests.metal_on_cpu import host
from tests.metal_on_cpu.engine_device import metal_on_cpu, path
from tests.metal_on_cpu.injected_bugs import COMPILER, SHADER_BUGS
from tests.metal_on_cpu.injection import Bug, injected
from tests.support.backend_metal import tiny_models
from tests.support.instantiations import is_turn_of, marked

GROUPS = (1, 2, 4, 6, 8, 12, 20)
OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"window": 128},
    {"softcap": 50.0},
    {"has_sinks": True},
    {"window": 4096, "softcap": 30.0, "has_sinks": True},
)


DIMS = (*HEAD_DIMS, 512)


def layer(dim: int = 64, group: int = 2, **options: object) -> LayerAttention:
    return LayerAttention(LayerCacheSpec(1, dim, dim), group, dim**-0.5, **options)


@pytest.mark.parametrize("options", OPTIONS[::4])
def test_the_kernels_pass(options: dict[str, object]) -> None:
    check_path(path(), [layer(**options)], 16, mx.float16)


@pytest.mark.parametrize(
    ("dim", "dtype"),
    marked(
        itertools.product(DIMS, DTYPES),
        lambda dim, dtype: is_turn_of(dtype, DTYPES, DIMS.index(dim)),
    ),
)
def test_the_kernels_pass_for_any_head_dim(dim: int, dtype: mx.Dtype) -> None:
    group = GROUPS[DIMS.index(dim) % len(GROUPS)]
    options = OPTIONS[DIMS.index(dim) % len(OPTIONS)]
    block_size = BLOCK_SIZES[DTYPES.index(dtype)]
    check_path(path(), [layer(dim, group, **options)], block_size, dtype)


@pytest.mark.parametrize("core_count", [8, 20, 76])
@pytest.mark.parametrize("group", GROUPS)
def test_the_kernels_pass_on_any_gpu(group: int, core_count: int) -> None:
    with host.gpu(core_count=core_count):
        check_path(path(), [layer(64, group)], 16, mx.float32)


def test_it_takes_few_launches() -> None:
    """Each one is a round trip to the GPU, and the engine waits for all of them."""
    host.take_launches()
    check_path(path(), [layer()] * 40, 16, mx.float16)
    assert len(host.take_launches()) == len(STEPS)


NOT_MET = {
    "tokens with a negative slot are written": "the engine gives every token a slot",
    "tokens without a slot are read from this step": "the engine gives every token a slot",
    "wide loads of what is not aligned": "the engine's arrays are aligned",
    "a row without keys divides by nothing": "a token of the engine sees at least itself",
    "block offsets in 32 bits": "takes a cache of more than 2^31 elements a layer",
    "slot offsets in 32 bits": "takes a cache of more than 2^31 elements a layer",
    "tiles before the window are masked, not skipped": "slow, and right",
    "keys before the window are read, and masked": "slow, and right",
}
"""What the check passes by, and why: the operators' tests find these."""

# Kernels of recurrent layers and of draws have checks of their own.
MET = [
    bug
    for bug in SHADER_BUGS
    if bug.caught_by != COMPILER
    and "linear_attention" not in bug.file
    and not bug.file.startswith("sampling/")
    and bug.name not in NOT_MET
]


# With these the check meets every option: gpt_oss has windows and sinks, gemma2 a softcap.
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [list(range(40, 80)), [5, 6, 7]]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for family in ("gpt_oss", "gemma2"):
        made[family] = tmp_path_factory.mktemp(family)
        tiny_models.save(family, made[family])
    return made


def tokens(llm: LLM) -> list[list[int]]:
    return [item.token_ids for item in llm.generate(PROMPTS, GREEDY, show_progress=False)]


def check_that_it_serves(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The kernels in use are wrong; the engine answers as the CPU's does, and says why once."""
    expected = tokens(LLM(str(checkpoint), num_kv_blocks=16, device="cpu"))
    with metal_on_cpu() as device:
        llm = LLM(str(checkpoint), num_kv_blocks=16, device=device.name)
        status = llm.engine.attention
        assert status is not None
        assert status.path == "reference"
        assert tokens(llm) == expected
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


@pytest.mark.parametrize("bug", MET, ids=str)
def test_with_a_broken_kernel_the_engine_is_right(
    bug: Bug,
    checkpoints: dict[str, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    family = "gemma2" if "softcap" in bug.step else "gpt_oss"
    with injected(bug.file, bug.old, bug.new, tmp_path):
        check_that_it_serves(checkpoints[family], caplog)
    assert "error:" not in caplog.text, "the bug does not compile, and shows nothing"


def test_without_a_compiled_kernel_the_engine_is_right(
    checkpoints: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bug = next(bug for bug in SHADER_BUGS if bug.caught_by == COMPILER and "scatter" in bug.file)
    with injected(bug.file, bug.old, bug.new, tmp_path):
        check_that_it_serves(checkpoints["gpt_oss"], caplog)
    assert re.search(r"scatter.metal.*error:", caplog.text)


def test_what_it_passes_by_is_little() -> None:
    names = {bug.name for bug in SHADER_BUGS}
    assert names >= NOT_MET.keys()
    assert len(MET) >= 25
