"""The CUDA kernels that draw tokens: they compile, and on the emulator they match float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.engine.sampling.kernel import KernelDraw
from deployments.backend import SamplingParams
from tests.cuda.on_cpu.extension import execution, operators
from tests.cuda.on_cpu.nvrtc import compile_kernel
from tests.support.backend_metal.draw_oracle import (
    Case,
    batch_of,
    cases,
    check,
    check_broken,
    check_equals,
    check_many,
    check_places,
    make_logits,
    make_row,
)
from tests.support.fuzzing import fuzz

WIDE_VOCABS = [8, 16, 304, 2048, 4104, 6160, 9008]
"""Whose rows are whole vectors of 16 bytes: of floats, and mostly of halves as well."""


@pytest.fixture(autouse=True)
def on_the_emulator() -> Iterator[None]:
    # MLX's buffers then start where the stand-in expects them.
    with mx.stream(mx.cpu):
        yield


def new_kernel() -> KernelDraw:
    module = operators()
    return KernelDraw(module.draw_tokens, any_float=True, make_array=module.upload)


@pytest.fixture
def kernel() -> KernelDraw:
    return new_kernel()


@fuzz(120)
@given(case=cases([1, 31, 300, 2049, 9001, *WIDE_VOCABS]))
def test_draws_match_the_oracle(kernel: KernelDraw, case: Case) -> None:
    with execution(backwards=case.seed % 2 == 1):
        check(kernel, case)


@fuzz(60)
@given(
    case=cases(WIDE_VOCABS).map(lambda case: replace(case, columns=(0, 0))),
    bad=st.sampled_from([None, None, math.nan, math.inf, -math.inf, -0.0]),
)
def test_where_rows_lie_changes_nothing(kernel: KernelDraw, case: Case, bad: float | None) -> None:
    with execution(backwards=case.seed % 2 == 1):
        check_places(kernel, case, bad)


@pytest.mark.parametrize("backwards", [False, True])
def test_of_equal_logits_the_lowest_ids_are_kept(kernel: KernelDraw, backwards: bool) -> None:
    with execution(backwards=backwards):
        check_equals(kernel, 60)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=["bfloat16", "float32"])
def test_of_a_large_vocabulary_most_may_stay(kernel: KernelDraw, dtype: mx.Dtype) -> None:
    with execution(backwards=dtype == mx.float32):
        check_many(kernel, dtype)
        check_many(kernel, dtype, 20_000)


@pytest.mark.parametrize("vocab_size", [700, 704])
def test_logits_that_are_no_numbers_end_in_some_token(kernel: KernelDraw, vocab_size: int) -> None:
    with execution():
        check_broken(kernel, vocab_size)


def test_options_that_stay_are_copied_once(kernel: KernelDraw) -> None:
    greedy, by_chance = SamplingParams(temperature=0.0), SamplingParams()
    steps = [greedy, greedy, by_chance, greedy]
    logits = make_logits(1, 5000)

    def drawn_by(kernel: KernelDraw, params: SamplingParams) -> object:
        return kernel(logits, batch_of([make_row(params)], 5000)).item()

    with execution():
        expected = [drawn_by(new_kernel(), one) for one in steps]
        operators().take_nodes()
        drawn = [drawn_by(kernel, one) for one in steps]
    assert drawn == expected
    names = [name for name, *_ in operators().take_nodes()]
    assert names.count("copy_staged_unsigned") == 3


@pytest.mark.parametrize("vocab_size", [4096, 4099])
def test_of_two_zeros_the_lower_token_is_drawn(kernel: KernelDraw, vocab_size: int) -> None:
    # Of one thread, of two lanes, of two warps and of two chunks.
    pairs = [(8, 9), (8, 16), (8, 1000), (8, 2048 - 1), (1030, 1031)]
    rows = np.full((len(pairs), vocab_size), -1.0, np.float32)
    for row, (lower, upper) in zip(rows, pairs, strict=True):
        row[lower], row[upper] = -0.0, 0.0
    greedy = [make_row(SamplingParams(temperature=0.0))] * len(pairs)
    with execution():
        drawn = kernel(mx.array(rows), batch_of(greedy, vocab_size)).tolist()
    assert drawn == [lower for lower, _ in pairs]


def launches_of(kernel: KernelDraw, *params: SamplingParams) -> list[str]:
    operators().take_nodes()
    logits = make_logits(len(params), 5000)
    with execution():
        mx.eval(kernel(logits, batch_of([*map(make_row, params)], 5000)))
    copy, event, *names = (name for name, *_ in operators().take_nodes())
    assert (copy, event) == ("copy_staged_unsigned", "event")  # of the options
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
    ("file", "function", "threads", "registers", "spilled"),
    [
        # As many threads as a multiprocessor can have.
        ("draw_chunks", "draw_chunks", 256, 32, 16),
        ("draw", "draw_weights", 512, 64, 0),
        ("draw", "draw_slices", 512, 64, 0),
        ("draw", "draw_rows", 512, 100, 160),
    ],
)
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_it_compiles(
    architecture: str,
    aligned: bool,
    file: str,
    function: str,
    threads: int,
    registers: int,
    spilled: int,
    element: str,
) -> None:
    resources = compile_kernel(file, function, element, "Draw", threads, architecture, aligned)
    # Of a row's threadgroup, some that a loop over a few candidates alone uses.
    assert resources.spilled_bytes <= spilled
    assert resources.registers <= registers
