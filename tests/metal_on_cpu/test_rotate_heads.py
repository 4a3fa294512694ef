"""The Metal kernel that rotates heads on the emulator: results, races by order, and its launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import mlx.core as mx
import pytest
from hypothesis import given

from tests.metal_on_cpu import host
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.rotate_heads_cases import (
    DTYPES,
    MANY,
    Case,
    cases,
    check,
    error_of_model,
)
from tests.support.fuzzing import fuzz


@pytest.fixture(params=[0, 1], ids=["in order", "backwards"])
def schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a threadgroup's threads."""
    with host.execution(seed=request.param):
        yield


@pytest.mark.usefixtures("schedule")
@fuzz(60)
@given(case=cases())
def test_heads_match_float64(case: Case) -> None:
    check(host.extension().rotate_heads, case)


@pytest.mark.parametrize("head_dim", [64, 128, 192, 512])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_size_of_lanes(dtype: mx.Dtype, head_dim: int) -> None:
    check(
        host.extension().rotate_heads,
        replace(MANY, tokens=3, head_dim=head_dim, dims=head_dim // 2, dtype=dtype),
    )


@pytest.mark.parametrize(("tokens", "groups"), [(3, 6), (900, 675)])
def test_it_is_one_launch_without_barriers(tokens: int, groups: int) -> None:
    """Of seven heads: a simdgroup has one of them, or of many tokens several."""
    host.take_launches()
    check(host.extension().rotate_heads, replace(MANY, tokens=tokens))
    (launch,) = host.take_launches()
    assert launch.kernels == ("rotate_heads_bfloat_2",)
    (dispatch,) = launch.dispatches
    assert dispatch.grid == (groups, 1, 1)
    assert dispatch.threadgroup_barriers == 0


@pytest.mark.parametrize("family", ["qwen3", "starcoder2", "helium", "llama-llama3-rope"])
def test_models_match_the_dense_model(family: str) -> None:
    """With norms, without, in neighbouring pairs, and with frequencies."""
    network, config = tiny_models.build(family)
    host.take_launches()
    worst = error_of_model(network, config, host.extension().rotate_heads)
    assert worst <= 1e-5
    assert "RotateHeads" in {launch.primitive for launch in host.take_launches()}
