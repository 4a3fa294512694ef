"""The Metal kernels that draw tokens on the emulator: results, and how they are launched."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest
from hypothesis import given

from backend_metal.engine.sampling.kernel import KernelDraw
from deployments.backend import SamplingParams
from tests.metal_on_cpu import host
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


@pytest.fixture(params=[0, 1], ids=["in order", "backwards"])
def schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a threadgroup's threads."""
    with host.execution(seed=request.param):
        yield


@pytest.fixture
def kernel() -> KernelDraw:
    return KernelDraw(host.extension().draw_tokens, any_float=True)


@pytest.mark.usefixtures("schedule")
@fuzz(60)
@given(case=cases([1, 31, 300, 2049, 9001]))
def test_draws_match_the_oracle(kernel: KernelDraw, case: Case) -> None:
    check(kernel, case)


@pytest.mark.usefixtures("schedule")
def test_of_equal_logits_the_lowest_ids_are_kept(kernel: KernelDraw) -> None:
    check_equals(kernel, 60)


@pytest.mark.usefixtures("schedule")
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=["bfloat16", "float32"])
def test_of_a_large_vocabulary_most_may_stay(kernel: KernelDraw, dtype: mx.Dtype) -> None:
    check_many(kernel, dtype)


@pytest.mark.usefixtures("schedule")
def test_logits_that_are_no_numbers_end_in_some_token(kernel: KernelDraw) -> None:
    check_broken(kernel)


def launches_of(kernel: KernelDraw, *params: SamplingParams) -> list[tuple[str, tuple[int, ...]]]:
    """Of a vocabulary of 9,001 tokens: kernels and grids."""
    host.take_launches()
    logits = make_logits(len(params), 9001).astype(mx.bfloat16)
    mx.eval(kernel(logits, batch_of([*map(make_row, params)], 9001)))
    (launch,) = host.take_launches()
    grids = [dispatch.grid for dispatch in launch.dispatches]
    return [*zip(launch.kernels, grids, strict=True)]


def test_it_is_two_dispatches(kernel: KernelDraw) -> None:
    assert launches_of(kernel, SamplingParams(), SamplingParams(temperature=0.0)) == [
        ("draw_chunks_bfloat", (5, 2, 1)),
        ("draw_rows_bfloat", (2, 1, 1)),
    ]


def test_where_a_row_leaves_tokens_out_it_is_four(kernel: KernelDraw) -> None:
    assert launches_of(kernel, SamplingParams(), SamplingParams(top_p=0.5)) == [
        ("draw_chunks_bfloat", (5, 2, 1)),
        ("draw_weights_bfloat", (2, 2, 1)),
        ("draw_slices_bfloat", (2, 2, 1)),
        ("draw_rows_bfloat", (2, 1, 1)),
    ]
