"""The emulator against kernels compiled by Apple: both must leave the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.metal_on_cpu.air_oracle import build, kernels
from tests.metal_on_cpu.air_oracle.compare import Kernel, Launch, outputs
from tests.metal_on_cpu.air_oracle.elements import Array, decode, encode, random

DTYPES = ("float32", "float16", "bfloat16")
TOLERANCES = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}


def check(kernel: Kernel, launch: Launch, expected: Array, dtype: str) -> None:
    apple, emulated = outputs(kernel, launch)
    assert apple.tobytes() == emulated.tobytes()
    assert relative_rms(decode(apple), expected) <= TOLERANCES[dtype]


def relative_rms(actual: Array, expected: Array) -> float:
    return float(np.sqrt(np.mean((actual - expected) ** 2) / np.mean(expected**2)))


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_simd_reductions(dtype: str, looped: bool) -> None:
    size, threads = (1500, 1024) if looped else (1000, 256)
    rows = encode(3 * np.random.default_rng(0).standard_normal((5, size), np.float32), dtype)
    weights = np.exp(decode(rows))
    expected = weights / weights.sum(axis=1, keepdims=True)
    # Sums are in the rows' own type.
    tolerance = "bfloat16" if dtype == "float16" else dtype
    check(
        kernels.softmax(dtype, looped), kernels.softmax_launch(rows, threads), expected, tolerance
    )


@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize(("keys", "queries", "causal"), [(1000, 1, False), (333, 4, True)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_attention(
    dtype: str, keys: int, queries: int, causal: bool, has_sinks: bool
) -> None:
    q, k, v, sinks = attention_inputs(4, 2, queries, keys, dtype)
    options = {"causal": causal, "sinks": sinks if has_sinks else None}
    launch = kernels.sdpa_vector_launch(q, k, v, **options)
    expected = kernels.expected_attention(q, k, v, **options)
    check(kernels.sdpa_vector(dtype), launch, expected, dtype)


@pytest.mark.parametrize("transposed_b", [False, True])
@pytest.mark.parametrize("shape", [(64, 64, 64), (37, 41, 27)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_simdgroup_matrices(dtype: str, shape: tuple[int, int, int], transposed_b: bool) -> None:
    m, n, k = shape
    a = random(0, (m, k), dtype)
    b = random(1, (n, k) if transposed_b else (k, n), dtype)
    expected = decode(a) @ (decode(b).T if transposed_b else decode(b))
    launch = kernels.gemm_launch(a, b, transposed_b)
    check(kernels.gemm(dtype, transposed_b), launch, expected, dtype)


@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (45, 83)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_attention(dtype: str, queries: int, keys: int, has_sinks: bool) -> None:
    q, k, v, sinks = attention_inputs(2, 1, queries, keys, dtype)
    options = {"causal": True, "sinks": sinks if has_sinks else None}
    launch = kernels.attention_launch(q, k, v, **options)
    expected = kernels.expected_attention(q, k, v, **options)
    check(kernels.attention(dtype), launch, expected, dtype)


def attention_inputs(
    heads: int, kv_heads: int, queries: int, keys: int, dtype: str, dim: int = 128
) -> tuple[Array, Array, Array, Array]:
    q = random(0, (heads, queries, dim), dtype)
    k, v = (random(i, (kv_heads, keys, dim), dtype) for i in (1, 2))
    return q, k, v, random(3, (heads,), dtype)


def test_matrices_from_memory_and_from_lanes() -> None:
    inputs = kernels.gated_delta_inputs(0, 19, "float32")
    launch = kernels.gated_delta_launch(*inputs)
    apple, emulated = outputs(kernels.gated_delta("float32"), launch)
    assert apple.tobytes() == emulated.tobytes()
    expected = kernels.expected_gated_delta(*inputs)
    assert relative_rms(decode(apple)[:, :2], expected[:, :2]) <= 1e-5


# Other places for a lane's two elements, each a permutation of the GPU's.
LANE_MAPS = {
    "rows in order of lanes": "{lane / 4, lane % 4 * 2}",
    "quarters by columns first": "{lane / 8 % 2 * 4 + lane / 2 % 4, lane / 16 * 4 + lane % 2 * 2}",
    "rows backwards": "{7 - (lane / 16 * 4 + lane / 2 % 4), lane / 8 % 2 * 4 + lane % 2 * 2}",
}


@pytest.mark.parametrize("lane_map", LANE_MAPS.values(), ids=LANE_MAPS.keys())
def test_no_other_lane_map_fits(lane_map: str) -> None:
    name = kernels.gated_delta("float32").name
    inputs = kernels.gated_delta_inputs(0, 19, "float32")
    launch = kernels.gated_delta_launch(*inputs)
    result = build.apple_kernel(name, lane_map).dispatch(
        name, grid=launch.grid, threadgroup=launch.threadgroup, buffers=launch.buffers
    )
    expected = kernels.expected_gated_delta(*inputs)[:, :2]
    assert relative_rms(decode(result.buffers[launch.output])[:, :2], expected) > 0.1
