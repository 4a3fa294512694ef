"""The Metal kernels that draw tokens on the emulator: results, and how they are launched."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings

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
    make_logits,
    make_row,
)


@pytest.fixture(params=[0, 1], ids=["in order", "backwards"])
def schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a threadgroup's threads."""
    with host.execution(seed=request.param):
        yield


@pytest.fixture
def kernel() -> KernelDraw:
    return KernelDraw(host.extension().draw_tokens, any_float=True)


@pytest.mark.usefixtures("schedule")
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(case=cases([1, 31, 300, 2049, 5000]))
def test_draws_match_the_oracle(kernel: KernelDraw, case: Case) -> None:
    check(kernel, case)


@pytest.mark.usefixtures("schedule")
def test_of_equal_logits_the_lowest_ids_are_kept(kernel: KernelDraw) -> None:
    check_equals(kernel, 60)


@pytest.mark.usefixtures("schedule")
def test_logits_that_are_no_numbers_end_in_some_token(kernel: KernelDraw) -> None:
    check_broken(kernel)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_p=0.5)])
def test_it_is_two_dispatches(kernel: KernelDraw, params: SamplingParams) -> None:
    host.take_launches()
    logits = make_logits(3, 5000).astype(mx.bfloat16)
    mx.eval(kernel(logits, batch_of([make_row(params)] * 3, 5000)))
    (launch,) = host.take_launches()
    assert launch.kernels == ("draw_chunks_bfloat", "draw_rows_bfloat")
    assert [dispatch.grid for dispatch in launch.dispatches] == [(3, 3, 1), (3, 1, 1)]
