"""The emulator's Metal standard library against numpy."""

import math

import numpy as np
import pytest

from tests.metal_on_cpu.emulator import compile_source
from tests.metal_on_cpu.emulator.kernels_for_tests import HEADER, elementwise, run

LANES = np.arange(32, dtype=np.float32)
VALUES = np.random.default_rng(0).uniform(0.1, 0.9, 64).astype(np.float32)

_UNARY = {
    "fabs": np.abs,
    "acos": np.arccos,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "ceil": np.ceil,
    "cos": np.cos,
    "exp": np.exp,
    "exp2": np.exp2,
    "fast::exp2": np.exp2,
    "precise::exp": np.exp,
    "floor": np.floor,
    "log": np.log,
    "log2": np.log2,
    "rint": np.rint,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "precise::tanh": np.tanh,
    "fract": lambda x: x - np.floor(x),
    "sign": np.sign,
    "saturate": lambda x: np.clip(x, 0, 1),
}


def test_unary_functions_are_numpys():
    body = "\n".join(
        f"if (index / 64 == {i}) out[index] = {name}(a[index] * 3 - 1);"
        if name in ("fabs", "ceil", "floor", "rint", "sign", "saturate", "tanh", "fract")
        else f"if (index / 64 == {i}) out[index] = {name}(a[index]);"
        for i, name in enumerate(_UNARY)
    )
    out = elementwise(body, np.tile(VALUES, len(_UNARY))).reshape(-1, 64)
    for row, (name, function) in zip(out, _UNARY.items(), strict=True):
        shifted = name in ("fabs", "ceil", "floor", "rint", "sign", "saturate", "tanh", "fract")
        x = VALUES * np.float32(3) - 1 if shifted else VALUES
        np.testing.assert_allclose(row, function(x), rtol=1e-6, atol=1e-6, err_msg=name)


def test_half_is_computed_in_float_and_rounded():
    x = VALUES.astype(np.float16)
    expected = np.exp(x.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(
        elementwise("out[index] = exp(a[index]);", x, out="half"), expected
    )


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("pow(x, y)", np.power),
        ("fmod(x * 9, y)", lambda x, y: np.fmod(x * np.float32(9), y)),
        ("atan2(x, y)", np.arctan2),
        ("max(x, y)", np.maximum),
        ("fmin(x, y)", np.minimum),
        ("copysign(x, y - 2)", lambda x, y: -x),
        ("fma(x, y, x)", lambda x, y: (x.astype(float) * y + x).astype(np.float32)),
        ("clamp(x, 0.3f, y)", lambda x, y: np.minimum(np.maximum(x, np.float32(0.3)), y)),
        ("mix(x, y, 0.25f)", lambda x, y: x + (y - x) * np.float32(0.25)),
        ("select(x, y, x < y)", lambda x, y: np.where(x < y, y, x)),
    ],
)
def test_binary_functions_are_numpys(expression, function):
    x, y = VALUES, VALUES[::-1].copy()
    out = elementwise(f"float x = a[index], y = b[index]; out[index] = {expression};", x, y)
    np.testing.assert_allclose(out, function(x, y), rtol=1e-6)


def test_a_nan_loses_against_a_number():
    out = elementwise("out[index] = max(a[index], 1.0f) + min(a[index], 1.0f);", LANES * np.nan)
    np.testing.assert_array_equal(out, np.full(32, 2))


def test_denormals_are_flushed():
    tiny = np.full(32, 1e-39, np.float32)
    np.testing.assert_array_equal(elementwise("out[index] = a[index] * 1e10f;", tiny), np.zeros(32))


def test_integer_functions():
    x = np.arange(32, dtype=np.uint32) * 0x01234567
    out = elementwise(
        "out[index] = popcount(a[index]) + 100 * clz(a[index]) + 10000 * ctz(a[index]);",
        x,
        out="uint",
    )
    expected = [
        v.bit_count()
        + 100 * (32 - v.bit_length())
        + 10000 * ((v & -v).bit_length() - 1 if v else 32)
        for v in map(int, x)
    ]
    np.testing.assert_array_equal(out, expected)


def test_infinity_limits_and_bit_casts():
    body = (
        "out[index] = as_type<float>(as_type<uint>(a[index]) ^ 0x80000000u)"
        " + (isinf(INFINITY) && numeric_limits<float>::infinity() > FLT_MAX ? 0 : 1);"
    )
    np.testing.assert_array_equal(elementwise(body, LANES + 1), -(LANES + 1))


def test_bfloat_rounds_to_nearest_even_after_every_operation():
    x = np.linspace(1, 2, 64, dtype=np.float32)
    out = elementwise("bfloat v = bfloat(a[index]); out[index] = float(v * v);", x)

    def to_bfloat(v: np.ndarray) -> np.ndarray:
        bits = v.astype(np.float32).view(np.uint32)
        rounded = bits + 0x7FFF + (bits >> 16 & 1) >> 16 << 16
        return rounded.astype(np.uint32).view(np.float32)

    np.testing.assert_array_equal(out, to_bfloat(to_bfloat(x) ** 2))


def test_vectors():
    out = elementwise(
        """
        float4 v = float4(a[index], 2, float2(3, 4));
        thread float4& r = v;
        r.xy = v.zw * 2.0f;
        float4 w = v.wzyx + float4(1);
        bool4 c = w > v;
        float2 s = select(float2(v.xy), float2(w.xy), bool2(c.xy));
        out[index] = dot(v, w) + float(all(c)) + 10 * float(any(c)) + s.x + v[3] + half4(w).x;
        """,
        LANES,
    )
    v = np.array([6, 8, 3, 4.0])
    w = v[::-1] + 1
    s = np.where(w > v, w, v)[0]
    expected = v @ w + float(all(w > v)) + 10 * float(any(w > v)) + s + v[3] + w[0]
    np.testing.assert_array_equal(out, np.full(32, expected))


def test_structures_are_copied_out_of_the_constant_space():
    kernel = """
    struct Inner { long stride; int n[3]; };
    struct Outer { Inner inner; float scale; };
    int last(Inner inner) { return inner.n[2]; }
    kernel void k(device float* out, constant Outer& p, uint i [[thread_position_in_grid]]) {
      Inner assigned;
      assigned = p.inner;
      Outer copied = p;
      Inner aggregate = {1, {2, 3, 4}};
      out[i] = last(p.inner) + assigned.stride + copied.scale + last(aggregate);
    }
    """
    outer = np.zeros(
        1, [("stride", "i8"), ("n", "i4", 3), ("", "i4"), ("scale", "f4"), ("_", "i4")]
    )
    outer["stride"], outer["n"], outer["scale"] = 1000, (1, 2, 30), 0.5
    out = run(kernel, {0: np.zeros(32, np.float32), 1: outer}).buffers[0]
    np.testing.assert_array_equal(out, np.full(32, 30 + 1000 + 0.5 + 4))


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_simd_shuffles(seed):
    exchanges = {
        "simd_shuffle(x, ushort(31 - lane))": LANES[::-1],
        "simd_shuffle_xor(x, 5)": LANES[np.arange(32) ^ 5],
        "simd_shuffle_down(x, 3)": [LANES[i + 3] if i + 3 < 32 else LANES[i] for i in range(32)],
        "simd_shuffle_up(x, 3)": [LANES[i - 3] if i >= 3 else LANES[i] for i in range(32)],
        "simd_shuffle_rotate_down(x, 3)": np.roll(LANES, -3),
        "simd_shuffle_rotate_up(x, 3)": np.roll(LANES, 3),
        "simd_shuffle_and_fill_down(x, -x, 3)": [i + 3 if i < 29 else -(i - 29) for i in range(32)],
        "simd_shuffle_and_fill_up(x, -x, 3)": [i - 3 if i >= 3 else -(i + 29) for i in range(32)],
        "simd_broadcast(x, 7)": np.full(32, 7),
        "simd_broadcast_first(x)": np.zeros(32),
        "quad_shuffle_xor(x, 1)": LANES[np.arange(32) ^ 1],
        "quad_sum(x)": np.repeat(LANES.reshape(8, 4).sum(1), 4),
    }
    body = "float x = a[lane]; float r = 0;" + "".join(
        f"{{ float y = {expression}; if (index / 32 == {i}) r = y; }}\n"
        for i, expression in enumerate(exchanges)
    )
    out = elementwise(body + "out[index] = r;", np.tile(LANES, len(exchanges)), seed=seed)
    for row, (expression, expected) in zip(out.reshape(-1, 32), exchanges.items(), strict=True):
        np.testing.assert_array_equal(row, expected, err_msg=expression)


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_simd_reductions_and_scans(seed):
    integers = np.random.default_rng(1).integers(0, 50, 32).astype(np.int32)
    reductions = {
        "simd_sum(x)": integers.sum(),
        "simd_max(x)": integers.max(),
        "simd_min(x)": integers.min(),
        "simd_and(x)": np.bitwise_and.reduce(integers),
        "simd_or(x)": np.bitwise_or.reduce(integers),
        "simd_xor(x)": np.bitwise_xor.reduce(integers),
        "simd_prefix_inclusive_sum(x)": np.cumsum(integers),
        "simd_prefix_exclusive_sum(x)": np.cumsum(integers) - integers,
        "int(simd_any(x == 200))": 0,
        "int(simd_all(x < 50))": 1,
        "int(ulong(simd_ballot(lane % 2 == 1)) & 0xff)": 0xAA,
    }
    body = "int x = a[lane]; int r = 0;" + "".join(
        f"{{ int y = {expression}; if (index / 32 == {i}) r = y; }}\n"
        for i, expression in enumerate(reductions)
    )
    inputs = np.tile(integers, len(reductions))
    out = elementwise(body + "out[index] = r;", inputs, out="int", seed=seed)
    for row, (expression, expected) in zip(out.reshape(-1, 32), reductions.items(), strict=True):
        np.testing.assert_array_equal(row, np.broadcast_to(expected, 32), err_msg=expression)


def test_simd_sum_folds_halves():
    x = np.random.default_rng(2).normal(size=32).astype(np.float32)
    folded = x.copy()
    for m in (16, 8, 4, 2, 1):
        folded = folded[:m] + folded[m:]
    np.testing.assert_array_equal(
        elementwise("out[index] = simd_sum(a[index]);", x), np.full(32, folded[0])
    )


@pytest.mark.parametrize("space", ["device", "threadgroup"])
def test_simdgroup_matrices(space):
    kernel = """
    kernel void k(
        device float* out, const device half* a, const device half* b,
        uint lane [[thread_index_in_simdgroup]]) {
      simdgroup_matrix<half, 8, 8> left, right;
      simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(0.5f);
      threadgroup half staged[128];
      for (uint i = lane; i < 64; i += 32) {
        staged[i] = a[i / 8 * 16 + i % 8];
        staged[64 + i] = b[i];
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (SPACE) {
        simdgroup_load(left, staged, 8);
        simdgroup_load(right, staged + 64, 8, ulong2(0, 0), true);
      } else {
        simdgroup_load(left, a, 16);
        simdgroup_load(right, b, 8, ulong2(0, 0), true);
      }
      simdgroup_multiply_accumulate(sum, left, right, sum);
      sum.thread_elements()[0] += 1;
      simdgroup_store(sum, out, 8);
    }
    """.replace("SPACE", "true" if space == "threadgroup" else "false")
    rng = np.random.default_rng(3)
    a = rng.normal(size=(8, 16)).astype(np.float16)
    b = rng.normal(size=(8, 8)).astype(np.float16)
    out = run(kernel, {0: np.zeros((8, 8), np.float32), 1: a, 2: b}).buffers[0]
    expected = a[:, :8].astype(float) @ b.T.astype(float) + 0.5
    expected[:, ::2] += 1
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_atomics():
    kernel = """
    kernel void k(
        device atomic_uint* total, device atomic_float* sum, device atomic_int* most,
        uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
      threadgroup atomic_int local;
      if (t == 0) atomic_store_explicit(&local, 0, memory_order_relaxed);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      atomic_fetch_add_explicit(&local, 1, memory_order_relaxed);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      atomic_fetch_add_explicit(total, uint(atomic_load_explicit(&local, memory_order_relaxed)),
                                memory_order_relaxed);
      atomic_fetch_add_explicit(sum, 0.5f, memory_order_relaxed);
      atomic_fetch_max_explicit(most, int(i), memory_order_relaxed);
    }
    """
    result = run(
        kernel,
        {0: np.zeros(1, np.uint32), 1: np.zeros(1, np.float32), 2: np.zeros(1, np.int32)},
        threadgroups=8,
        threads=64,
        workers=2,
    )
    assert result.buffers[0][0] == 8 * 64 * 64
    assert result.buffers[1][0] == 8 * 64 * 0.5
    assert result.buffers[2][0] == 8 * 64 - 1


def test_indices_of_a_three_dimensional_grid():
    kernel = """
    kernel void k(
        device uint* out,
        uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
        uint3 local [[thread_position_in_threadgroup]], uint3 size [[threads_per_threadgroup]],
        uint3 position [[thread_position_in_grid]], uint3 extent [[threads_per_grid]],
        uint index [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]],
        uint lane [[thread_index_in_simdgroup]], uint width [[threads_per_simdgroup]],
        uint simds [[simdgroups_per_threadgroup]]) {
      bool right = all(position == group * size + local) && all(extent == groups * size)
          && index == local.x + size.x * (local.y + size.y * local.z)
          && index == simd * width + lane && simds == (size.x * size.y * size.z + 31) / 32;
      out[position.x + extent.x * (position.y + extent.y * position.z)] = right;
    }
    """
    result = compile_source(HEADER + kernel).dispatch(
        "k", grid=(2, 3, 2), threadgroup=(8, 4, 2), buffers={0: np.zeros(16 * 12 * 4, np.uint32)}
    )
    assert result.buffers[0].sum() == math.prod((16, 12, 4))
