"""The Metal kernels of recurrent layers on the emulator: results, races by order, and traffic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest

from backend_metal.recurrent import operators
from backend_metal.recurrent.paths import Kernels
from tests.metal_on_cpu import host
from tests.support.backend_metal import recurrent_oracle as oracle
from tests.support.backend_metal.recurrent_cases import check_conv, check_linear_attention

LAYOUTS = {
    "decode": oracle.Layout((1, 1, 1), (0, 7, -1), (0, 3, 5)),
    "prefill": oracle.Layout((21,), (-1,), (2,)),
    # Shorter than a window, one after another, and across the tiles of the convolution.
    "short": oracle.Layout((2, 1, 3, 2, 9), (4, -1, 2, 6, 1), (4, 3, 2, 0, 1)),
    "mixed": oracle.Layout((1, 17, 1, 5), (3, 8, -1, 8), (3, 1, 2, 0)),
}
DTYPES = (mx.float32, mx.float16, mx.bfloat16)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    module = host.extension()
    return Kernels(module.causal_conv, module.linear_attention)


@pytest.fixture(params=[0, 1], ids=["in order", "backwards"])
def schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a threadgroup's threads."""
    with host.execution(seed=request.param):
        yield


@pytest.mark.usefixtures("schedule")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions_match_float64(kernels: Kernels, dtype: mx.Dtype, layout: str) -> None:
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
    kernels: Kernels, dtype: mx.Dtype, delta_rule: bool, layout: str
) -> None:
    for seed, (dims, channel_gates) in enumerate([((64, 18), False), ((128, 32), True)]):
        check_linear_attention(
            kernels,
            LAYOUTS[layout],
            heads=(2, 2),
            dims=dims,
            channel_gates=channel_gates,
            delta_rule=delta_rule,
            is_part=seed == 0,
            dtype=dtype,
            seed=seed,
        )


def decode(kernels: Kernels, num_seqs: int) -> tuple[Any, int]:
    """A step of decodes, as Qwen3.5 has them, and the bytes of its sequences' states."""
    heads, dim = 2, 128
    layout = oracle.Layout((1,) * num_seqs, tuple(range(num_seqs)), tuple(range(num_seqs)))
    states = mx.zeros((oracle.NUM_SLOTS, heads, dim, dim))
    rows, gates = mx.ones((num_seqs, heads, dim), mx.bfloat16), mx.ones((num_seqs, heads))
    mx.eval(states, rows, gates)
    host.take_launches()
    with host.execution(track_loads=True):
        mx.eval(
            operators.linear_attention(
                kernels, rows, rows, rows, gates, gates, states, layout.metadata, delta_rule=True
            )
        )
        (launch,) = host.take_launches()
    return launch, num_seqs * heads * dim * dim * 4


def test_decode_reads_each_state_once(kernels: Kernels) -> None:
    launch, state_bytes = decode(kernels, 3)
    assert len(launch.dispatches) == 1
    assert launch.loaded_bytes(frozenset({5})) == state_bytes
    # Nothing is shared by threads, so nothing waits.
    assert launch.dispatches[0].threadgroup_barriers == 0
    assert launch.dispatches[0].threadgroup_bytes_used == 0


def test_a_convolution_reads_no_state_twice(kernels: Kernels) -> None:
    layout = oracle.Layout((1, 1, 12), (0, 1, 2), (0, 1, 2))
    x, weight = mx.ones((14, 64), mx.bfloat16), mx.ones((4, 64))
    states = mx.zeros((oracle.NUM_SLOTS, 3, 64), mx.bfloat16)
    mx.eval(x, weight, states)
    host.take_launches()
    with host.execution(track_loads=True):
        mx.eval(operators.causal_conv(kernels, x, weight, None, states, layout.metadata))
        (launch,) = host.take_launches()
    assert launch.loaded_bytes(frozenset({2})) == 3 * 3 * 64 * 2


def test_a_pool_is_not_counted_as_memory_that_waits(kernels: Kernels) -> None:
    """MLX ends a command buffer when the arrays that it has met are large."""
    launch, state_bytes = decode(kernels, 3)
    assert launch.counted_elements < state_bytes // 4
