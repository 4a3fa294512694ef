"""The CPU kernels of recurrent layers against float64, over random shapes, slots and strides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import native
from backend_metal.device import CPU
from backend_metal.recurrent import StateMetadata, operators
from tests.support.backend_metal import recurrent_oracle as oracle
from tests.support.backend_metal.recurrent_cases import (
    CONVOLUTIONS,
    TOLERANCES,
    check_conv,
    check_linear_attention,
)
from tests.support.fuzzing import fuzz

KERNELS = CPU.recurrent
EXAMPLES = fuzz(60)


@pytest.fixture(params=["avx512", "avx2", "baseline"], autouse=True, scope="module")
def instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    before = native.instruction_set()
    try:
        native.set_instruction_set(request.param)
    except ValueError:
        pytest.skip(f"no {request.param} here")
    yield
    native.set_instruction_set(before)


@EXAMPLES
@given(**CONVOLUTIONS)
def test_causal_conv(layout: oracle.Layout, **case: Any) -> None:
    check_conv(KERNELS, layout, **case)


@EXAMPLES
@given(
    layout=oracle.layouts(),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dims=st.tuples(
        st.one_of(st.integers(1, 40), st.sampled_from([64, 128])),
        st.one_of(st.integers(1, 40), st.just(64)),
    ),
    channel_gates=st.booleans(),
    gates_are_rates=st.booleans(),
    delta_rule=st.booleans(),
    is_part=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCES)),
    seed=st.integers(0, 2**16),
)
def test_linear_attention(layout: oracle.Layout, **case: Any) -> None:
    check_linear_attention(KERNELS, layout, **case)


@EXAMPLES
@given(
    layout=oracle.layouts(),
    heads=st.tuples(st.integers(1, 2), st.one_of(st.integers(1, 40), st.just(1030))),
    dim=st.one_of(st.sampled_from([1, 16]), st.integers(1, 40)),
    channel_gates=st.booleans(),
    gates_are_rates=st.booleans(),
    delta_rule=st.sampled_from([False, False, True]),
    is_part=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCES)),
    seed=st.integers(0, 2**16),
)
def test_heads_of_one_value(layout: oracle.Layout, dim: int, **case: Any) -> None:
    check_linear_attention(KERNELS, layout, dims=(dim, 1), **case)


def arguments(tokens: int = 3) -> dict[str, Any]:
    return {
        "q": mx.zeros((tokens, 1, 4)),
        "k": mx.zeros((tokens, 1, 4)),
        "v": mx.zeros((tokens, 2, 8)),
        "gates": mx.ones((tokens, 2)),
        "betas": mx.ones((tokens, 2)),
        "states": mx.zeros((4, 2, 8, 4)),
    }


def metadata(reads: list[int], writes: list[int], borders: list[int]) -> StateMetadata:
    return StateMetadata.of(*(np.array(ints, np.int32) for ints in (reads, writes, borders)))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("q", mx.zeros((3, 2, 4))),
        ("k", mx.zeros((3, 3, 4))),
        ("v", mx.zeros((4, 2, 8))),
        ("v", mx.zeros((3, 2, 8), mx.int32)),
        ("gates", mx.ones((3, 2, 8))),
        ("betas", mx.ones((3, 2), mx.float16)),
        ("states", mx.zeros((4, 2, 8, 4), mx.bfloat16)),
        ("states", mx.zeros((4, 2, 4, 8))),
    ],
)
def test_bad_arrays_are_named(name: str, wrong: mx.array) -> None:
    given = arguments() | {name: wrong}
    steps = metadata([-1], [0], [0, 3])
    with pytest.raises(ValueError, match=rf"^({name}|v) must "):
        operators.linear_attention(KERNELS, **given, metadata=steps, delta_rule=True)


def test_rates_are_of_heads_and_channels() -> None:
    steps = metadata([-1], [0], [0, 3])
    given = arguments() | {"gates": mx.ones((3, 2))}
    with pytest.raises(ValueError, match=r"gates must have shape \(2, 4\), not \(3, 2\)"):
        operators.linear_attention(
            KERNELS, **given, metadata=steps, delta_rule=False, gates_are_rates=True
        )


@pytest.mark.parametrize(
    ("reads", "writes", "borders", "named"),
    [
        ([4, 0], [1, 2], [0, 1, 3], "read_slots"),
        ([0, 1], [1, -1], [0, 1, 3], "write_slots"),
        ([0, 1], [2, 2], [0, 1, 3], "write_slots"),
        ([2, 1], [3, 2], [0, 1, 3], "read_slots"),
        ([0, 1], [0, 1], [0, 2, 4], "cu_seqlens_q"),
    ],
)
def test_bad_slots_are_named(
    reads: list[int], writes: list[int], borders: list[int], named: str
) -> None:
    steps = metadata(reads, writes, borders)
    # Found when it is evaluated, and as MLX passes errors on from there.
    out = operators.linear_attention(KERNELS, **arguments(), metadata=steps, delta_rule=False)
    with pytest.raises(RuntimeError, match=f"^{named} must "):
        mx.eval(out)
    x, weight, states = mx.zeros((3, 4)), mx.zeros((4, 4)), mx.zeros((4, 3, 4))
    out = operators.causal_conv(KERNELS, x, weight, None, states, steps)
    with pytest.raises(RuntimeError, match=f"^{named} must "):
        mx.eval(out)


def test_convolutions_that_are_refused() -> None:
    x, steps = mx.zeros((3, 4)), metadata([-1], [0], [0, 3])
    with pytest.raises(ValueError, match="weight must have a kernel of 2 to 8, not 9"):
        operators.causal_conv(KERNELS, x, mx.zeros((9, 4)), None, mx.zeros((1, 8, 4)), steps)
    with pytest.raises(ValueError, match="states must have shape"):
        operators.causal_conv(KERNELS, x, mx.zeros((4, 4)), None, mx.zeros((1, 4, 4)), steps)
    states = mx.zeros((1, 3, 4), mx.float16)
    with pytest.raises(ValueError, match="states must be"):
        operators.causal_conv(KERNELS, x, mx.zeros((4, 4)), None, states, steps)
