"""The CUDA kernel that rotates heads: it compiles, and on the emulator it matches float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given

from tests.cuda.on_cpu.extension import execution, operators
from tests.cuda.on_cpu.nvrtc import compile_kernel
from tests.support.backend_metal.rotate_heads_cases import (
    MANY,
    SEVERAL,
    UNEVEN,
    Case,
    cases,
    check,
)
from tests.support.fuzzing import fuzz


@pytest.fixture(autouse=True)
def on_the_emulator() -> Iterator[None]:
    # MLX's buffers then start where the stand-in expects them.
    with mx.stream(mx.cpu):
        yield


@fuzz(150)
@given(case=cases())
def test_heads_match_float64(case: Case) -> None:
    with execution(backwards=case.seed % 2 == 1):
        check(operators().rotate_heads, case)


@pytest.mark.parametrize("case", [MANY, SEVERAL, UNEVEN], ids=["many", "several", "uneven"])
def test_many_tokens_match_float64(case: Case) -> None:
    with execution():
        check(operators().rotate_heads, case)


def test_angles_that_are_found_ahead_match_float64() -> None:
    def rotate(q: mx.array, k: mx.array, positions: mx.array, **options: Any) -> Any:
        mx.eval(positions)
        operators().remember_loaded(positions)
        try:
            outputs = operators().rotate_heads(q, k, positions, **options)
            mx.eval(outputs)
        finally:
            operators().forget_loaded()
        return outputs

    with execution(backwards=True):
        check(rotate, MANY)


def test_it_is_one_launch() -> None:
    operators().take_nodes()
    with execution():
        check(operators().rotate_heads, MANY)
    assert len(operators().take_nodes()) == 1


@pytest.mark.parametrize("element", ["bfloat", "half", "float"])
@pytest.mark.parametrize(
    ("pairs", "lanes", "registers"),
    [(1, 32, 64), (2, 32, 64), (3, 32, 80), (4, 8, 80), (4, 16, 80), (4, 32, 80), (8, 32, 160)],
)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_it_compiles(
    architecture: str, pairs: int, lanes: int, registers: int, element: str
) -> None:
    resources = compile_kernel(
        "rotate_heads",
        "rotate_heads",
        element,
        "RotateHeads",
        128,
        architecture,
        False,
        sizes=(pairs, lanes),
    )
    assert resources.spilled_bytes == 0
    # With 64 a multiprocessor has room for half of the threads that it can have.
    assert resources.registers <= registers
