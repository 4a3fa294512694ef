"""The CUDA kernels that draw tokens: they compile, and on the emulator they match float64."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest
from hypothesis import given

from backend_metal.engine.sampling.kernel import KernelDraw
from deployments.backend import SamplingParams
from tests.cuda_on_cpu.extension import execution, operators
from tests.cuda_on_cpu.nvrtc import compile_kernel
from tests.support.backend_metal.draw_oracle import (
    Case,
    batch_of,
    cases,
    check,
    check_broken,
    check_equals,
    check_many,
    make_logits,
    make_row,
)
from tests.support.fuzzing import fuzz


@pytest.fixture(autouse=True)
def on_the_emulator() -> Iterator[None]:
    # MLX's buffers then start where the stand-in expects them.
    with mx.stream(mx.cpu):
        yield


@pytest.fixture
def kernel() -> KernelDraw:
    module = operators()
    return KernelDraw(module.draw_tokens, any_float=True, make_array=module.upload)


@fuzz(120)
@given(case=cases([1, 31, 300, 2049, 9001]))
def test_draws_match_the_oracle(kernel: KernelDraw, case: Case) -> None:
    with execution(backwards=case.seed % 2 == 1):
        check(kernel, case)


@pytest.mark.parametrize("backwards", [False, True])
def test_of_equal_logits_the_lowest_ids_are_kept(kernel: KernelDraw, backwards: bool) -> None:
    with execution(backwards=backwards):
        check_equals(kernel, 60)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=["bfloat16", "float32"])
def test_of_a_large_vocabulary_most_may_stay(kernel: KernelDraw, dtype: mx.Dtype) -> None:
    with execution(backwards=dtype == mx.float32):
        check_many(kernel, dtype)


def test_logits_that_are_no_numbers_end_in_some_token(kernel: KernelDraw) -> None:
    with execution():
        check_broken(kernel)


def launches_of(kernel: KernelDraw, *params: SamplingParams) -> list[str]:
    operators().take_nodes()
    logits = make_logits(len(params), 5000)
    with execution():
        mx.eval(kernel(logits, batch_of([*map(make_row, params)], 5000)))
    copy, event, *names = (name for name, *_ in operators().take_nodes())
    assert (copy, event) == ("copy", "event")  # of the options
    return names


def test_it_is_two_launches(kernel: KernelDraw) -> None:
    names = launches_of(kernel, SamplingParams(), SamplingParams(temperature=0.0))
    assert names == ["draw_chunks_float", "draw_rows_float"]


def test_where_a_row_leaves_tokens_out_it_is_four(kernel: KernelDraw) -> None:
    names = launches_of(kernel, SamplingParams(), SamplingParams(top_k=2))
    kernels = ("draw_chunks", "draw_weights", "draw_slices", "draw_rows")
    assert names == [f"{kernel}_float" for kernel in kernels]


@pytest.mark.parametrize("element", ["bfloat", "half", "float"])
@pytest.mark.parametrize(
    ("function", "threads", "registers", "spilled"),
    [
        ("draw_chunks", 256, 40, 0),
        ("draw_weights", 512, 64, 0),
        ("draw_slices", 512, 64, 0),
        ("draw_rows", 512, 100, 160),
    ],
)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_it_compiles(
    architecture: str, function: str, threads: int, registers: int, spilled: int, element: str
) -> None:
    resources = compile_kernel("draw", function, element, "Draw", threads, architecture, False)
    # Of a row's threadgroup, some that a loop over a few candidates alone uses.
    assert resources.spilled_bytes <= spilled
    assert resources.registers <= registers
