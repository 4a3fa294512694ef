"""Kernels compile for NVIDIA GPUs, and fit into their registers."""

from __future__ import annotations

import itertools

import pytest

from backend_metal.attention.head_dims import HEAD_DIMS, WIDE_HEAD_DIMS
from tests.cuda.on_cpu.nvrtc import CompileError, compile_attention, compile_kernel, compile_text
from tests.support.instantiations import TYPICAL_HEAD_DIMS, is_turn_of, marked

# An A100, an H100 or H200, a B200, and a DGX Spark.
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_121a")
ELEMENTS = ("bfloat", "half", "float")
ALL_HEAD_DIMS = [*((a, b) for a in HEAD_DIMS for b in HEAD_DIMS), *WIDE_HEAD_DIMS]
MOST_SPILLED_BYTES = 128


def check(function: str, element: str, head_dims: tuple[int, int], architecture: str) -> None:
    resources = compile_attention(function, element, head_dims, architecture)
    # 65,536 registers are two blocks of 128 threads at 255 each.
    assert resources.registers <= 255
    assert resources.spilled_bytes <= MOST_SPILLED_BYTES


def check_warpgroups(element: str, head_dims: tuple[int, int]) -> None:
    resources = compile_attention("warpgroup_prefill", element, head_dims, "sm_90a")
    # Of 65,536, for three or four warpgroups, before some give theirs to others.
    assert resources.registers <= (128 if max(head_dims) <= 64 else 168)
    # With all options, what a row sees, for the few tiles that have a mask.
    assert resources.spilled_bytes <= 288


@pytest.mark.parametrize("element", ["bfloat", "float"])
@pytest.mark.parametrize("function", ["decode", "prefill", "attend_alike"])
@pytest.mark.parametrize("head_dims", [(128, 128), (576, 512)])
def test_attention_on_hopper(function: str, element: str, head_dims: tuple[int, int]) -> None:
    check(function, element, head_dims, "sm_90a")


@pytest.mark.parametrize("head_dims", [(64, 64), (128, 128)])
def test_three_blocks_of_a_decode_have_room(head_dims: tuple[int, int]) -> None:
    assert compile_attention("decode", "bfloat", head_dims, "sm_90a").registers <= 168


@pytest.mark.parametrize("function", ["decode", "prefill", "decode_reduce", "prefill_reduce"])
def test_attention_on_ampere(function: str) -> None:
    check(function, "half", (80, 64), "sm_80")


@pytest.mark.parametrize("element", ["bfloat", "half"])
@pytest.mark.parametrize("head_dims", [(64, 64), (128, 128), (192, 128), (256, 256)])
def test_warpgroups(element: str, head_dims: tuple[int, int]) -> None:
    check_warpgroups(element, head_dims)
    # What most models ask of it spills nothing, as nothing may within the loop over keys.
    resources = compile_attention("warpgroup_prefill", element, head_dims, "sm_90a", options=False)
    assert resources.spilled_bytes <= 32


def test_attention_without_any_option() -> None:
    assert compile_attention("decode", "half", (64, 64), "sm_80", options=False).registers <= 255


@pytest.mark.parametrize("element", ["unsigned short", "unsigned"])
def test_copies(element: str) -> None:
    compile_kernel("scatter", "scatter", element, "Scatter", 128, "sm_90a", True)
    compile_kernel("pack", "pack_rows", element, "Pack", 128, "sm_90a", False)


def test_what_does_not_compile_says_why() -> None:
    with pytest.raises(CompileError, match="no_such_type"):
        compile_text("no_such_type x;", "sm_90a")


def in_ladder(head_dims: tuple[int, int], element: str, architecture: str) -> bool:
    """Of typical models, for each architecture one of the types in turn."""
    if head_dims not in TYPICAL_HEAD_DIMS:
        return False
    turn = TYPICAL_HEAD_DIMS.index(head_dims) + ARCHITECTURES.index(architecture)
    return is_turn_of(element, ELEMENTS, turn)


@pytest.mark.parametrize(
    ("head_dims", "element", "architecture"),
    marked(itertools.product(ALL_HEAD_DIMS, ELEMENTS, ARCHITECTURES), in_ladder),
)
def test_every_instantiation(head_dims: tuple[int, int], element: str, architecture: str) -> None:
    for function in ("decode", "prefill", "attend_alike", "decode_reduce", "prefill_reduce"):
        check(function, element, head_dims, architecture)
    if architecture == "sm_90a" and element != "float" and max(head_dims) <= 256:
        check_warpgroups(element, head_dims)
