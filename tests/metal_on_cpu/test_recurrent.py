"""The Metal kernels of recurrent layers on the emulator: results, races by order, and traffic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.device import REFERENCE
from backend_metal.devices.base import RecurrentKernels
from backend_metal.devices.extension import GPU_HEAD_DIMS
from backend_metal.recurrent import RecurrentSpec, StateArray, choose_path, operators
from tests.metal_on_cpu import host
from tests.metal_on_cpu.injection import injected
from tests.support.backend_metal import recurrent_oracle as oracle
from tests.support.backend_metal.changed_device import changed
from tests.support.backend_metal.recurrent_cases import check_conv, check_linear_attention
from tests.support.fuzzing import fuzz

LAYOUTS = {
    "decode": oracle.Layout((1, 1, 1), (0, 7, -1), (0, 3, 5)),
    "prefill": oracle.Layout((21,), (-1,), (2,)),
    # Shorter than a window, one after another, and across the tiles of the convolution.
    "short": oracle.Layout((2, 1, 3, 2, 9), (4, -1, 2, 6, 1), (4, 3, 2, 0, 1)),
    "mixed": oracle.Layout((1, 17, 1, 5), (3, 8, -1, 8), (3, 1, 2, 0)),
}
DTYPES = (mx.float32, mx.float16, mx.bfloat16)


@pytest.fixture(scope="module")
def kernels() -> RecurrentKernels:
    module = host.extension()
    return RecurrentKernels(module.causal_conv, module.linear_attention)


@pytest.fixture(params=[0, 1], ids=["in order", "backwards"])
def schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a threadgroup's threads."""
    with host.execution(seed=request.param):
        yield


@pytest.mark.usefixtures("schedule")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions_match_float64(
    kernels: RecurrentKernels, dtype: mx.Dtype, layout: str
) -> None:
    for seed, (channels, kernel, has_bias, is_part) in enumerate(
        [(300, 4, False, True), (20, 3, True, False), (5, 8, True, True)]
    ):
        check_conv(
            kernels,
            LAYOUTS[layout],
            channels=channels,
            kernel=kernel,
            has_bias=has_bias,
            is_part=is_part,
            dtype=dtype,
            seed=seed,
        )


@pytest.mark.usefixtures("schedule")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("delta_rule", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_attention_matches_float64(
    kernels: RecurrentKernels, dtype: mx.Dtype, delta_rule: bool, layout: str
) -> None:
    for seed, (dims, channel_gates) in enumerate(
        [((64, 18), False), ((128, 32), True), ((32, 5), True)]
    ):
        check_linear_attention(
            kernels,
            LAYOUTS[layout],
            heads=(2, 2),
            dims=dims,
            channel_gates=channel_gates,
            gates_are_rates=seed == 2,
            delta_rule=delta_rule,
            is_part=seed == 0,
            dtype=dtype,
            seed=seed,
        )


@pytest.mark.usefixtures("schedule")
@fuzz(40)
@given(
    layout=oracle.layouts(),
    heads=st.one_of(
        st.tuples(st.integers(1, 3), st.integers(1, 3)),
        # Mamba 1's channels, over several threadgroups.
        st.tuples(st.just(1), st.integers(60, 200)),
    ),
    dims=st.tuples(st.sampled_from([1, 4, 8, 16]), st.sampled_from([1, 1, 2, 5])),
    channel_gates=st.booleans(),
    gates_are_rates=st.booleans(),
    delta_rule=st.booleans(),
    is_part=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**16),
)
def test_narrow_states_match_float64(
    kernels: RecurrentKernels, layout: oracle.Layout, **case: Any
) -> None:
    check_linear_attention(kernels, layout, **case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", GPU_HEAD_DIMS)
def test_every_instantiation(kernels: RecurrentKernels, dim: int, dtype: mx.Dtype) -> None:
    check_linear_attention(
        kernels,
        LAYOUTS["mixed"],
        heads=(1, 3),
        dims=(dim, 5),
        channel_gates=dim % 3 == 1,
        delta_rule=dim % 3 == 2,
        is_part=True,
        dtype=dtype,
        seed=dim,
    )


MAMBA = RecurrentSpec(
    (StateArray((3, 40), mx.float32), StateArray((40, 1, 16), mx.float32)), fits_kernels=True
)


def test_the_check_at_start_covers_mamba(
    kernels: RecurrentKernels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = changed(
        REFERENCE, attention="metal", recurrent=replace(kernels, head_dims=GPU_HEAD_DIMS)
    )
    assert MAMBA.is_updated_by(path.recurrent)
    assert choose_path([MAMBA], mx.bfloat16, path) is path
    for right, wrong in (("mask *= 2", "mask *= 4"), ("exp(beta * rates)", "exp(rates)")):
        with injected("recurrent/narrow_linear_attention.metal", right, wrong, tmp_path):
            assert choose_path([MAMBA], mx.bfloat16, path) is REFERENCE
    assert "wrong about linear attention for state of (40, 1, 16)" in caplog.text


def decode(
    kernels: RecurrentKernels, num_seqs: int, *, heads: int = 2, dims: tuple[int, int] = (128, 128)
) -> tuple[Any, int]:
    """A step of decodes, by default as Qwen3.5 has them, and the bytes of its sequences' states."""
    (dim, dim_v), slots = dims, tuple(range(num_seqs))
    layout = oracle.Layout((1,) * num_seqs, slots, slots)
    states = mx.zeros((oracle.NUM_SLOTS, heads, dim_v, dim))
    keys, values = (mx.ones((num_seqs, heads, size), mx.bfloat16) for size in dims)
    gates = mx.ones((num_seqs, heads))
    mx.eval(states, keys, values, gates)
    host.take_launches()
    with host.execution(track_loads=True):
        mx.eval(
            operators.linear_attention(
                kernels, keys, keys, values, gates, gates, states, layout.metadata, delta_rule=True
            )
        )
        (launch,) = host.take_launches()
    return launch, num_seqs * heads * dim_v * dim * 4


# Qwen3.5's, and heads that are channels, which don't fill the last threadgroup: Mamba 1's, and
# Griffin's.
@pytest.mark.parametrize(
    ("heads", "dims", "grid"),
    [
        (2, (128, 128), (8, 2, 3)),
        (300, (16, 1), (10, 1, 3)),
        (70, (4, 3), (2, 1, 3)),
        (200, (1, 1), (2, 1, 3)),
    ],
)
def test_decode_reads_and_writes_each_state_once(
    kernels: RecurrentKernels, heads: int, dims: tuple[int, int], grid: tuple[int, int, int]
) -> None:
    launch, state_bytes = decode(kernels, 3, heads=heads, dims=dims)
    assert [dispatch.grid for dispatch in launch.dispatches] == [grid]
    assert launch.loaded_bytes(frozenset({5})) == state_bytes
    assert launch.stored_bytes(frozenset({5})) == state_bytes
    # Nothing is shared by threads, so nothing waits.
    assert launch.dispatches[0].threadgroup_barriers == 0
    assert launch.dispatches[0].threadgroup_bytes_used == 0


def test_a_convolution_reads_no_state_twice(kernels: RecurrentKernels) -> None:
    layout = oracle.Layout((1, 1, 12), (0, 1, 2), (0, 1, 2))
    x, weight = mx.ones((14, 64), mx.bfloat16), mx.ones((4, 64))
    states = mx.zeros((oracle.NUM_SLOTS, 3, 64), mx.bfloat16)
    mx.eval(x, weight, states)
    host.take_launches()
    with host.execution(track_loads=True):
        mx.eval(operators.causal_conv(kernels, x, weight, None, states, layout.metadata))
        (launch,) = host.take_launches()
    assert launch.loaded_bytes(frozenset({2})) == 3 * 3 * 64 * 2


def test_a_pool_is_not_counted_as_memory_that_waits(kernels: RecurrentKernels) -> None:
    """MLX ends a command buffer when the arrays that it has met are large."""
    launch, state_bytes = decode(kernels, 3)
    assert launch.counted_elements < state_bytes // 4
