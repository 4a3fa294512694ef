"""Products with quantized matrices on CUDA: the emulator's match float64, and they compile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cuda_on_cpu.extension import execution, operators
from tests.cuda_on_cpu.nvrtc import compile_kernel

PRECISION = {mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}
"""Of a rounded number, relative to it."""


@pytest.fixture(autouse=True)
def on_the_emulator() -> Iterator[None]:
    # MLX's buffers then start where the stand-in expects them.
    with mx.stream(mx.cpu):
        yield


@dataclass(frozen=True)
class Case:
    rows: int
    outputs: int
    chunks: int
    group_size: int
    bits: int
    dtype: mx.Dtype
    seed: int = 0

    @property
    def depth(self) -> int:
        return self.chunks * 512 // self.bits

    def quantized(self) -> list[mx.array]:
        rng = np.random.default_rng(self.seed)
        matrix = mx.array(rng.normal(size=(self.outputs, self.depth)).astype(np.float32))
        arrays = mx.quantize(matrix.astype(self.dtype), self.group_size, self.bits)
        return list(arrays)

    def x(self) -> mx.array:
        values = np.random.default_rng(self.seed + 1).normal(size=(self.rows, self.depth))
        return mx.array(values.astype(np.float32)).astype(self.dtype)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    bits = draw(st.sampled_from([4, 8]))
    # A chunk of 8 bits is no longer than a group of 64.
    group_size = draw(st.sampled_from([32, 64, 128] if bits == 4 else [32, 64]))
    return Case(
        draw(st.integers(1, 70)),
        draw(st.integers(1, 100)),
        draw(st.integers(1, 11)),
        group_size,
        bits,
        draw(st.sampled_from([mx.float16, mx.bfloat16])),
        draw(st.integers(0, 99)),
    )


def check(case: Case) -> None:
    x, (weights, scales, biases) = case.x(), case.quantized()
    found = operators().quantized_product(
        x, weights, scales, biases, group_size=case.group_size, bits=case.bits
    )
    assert found.dtype == case.dtype
    # A weight is rounded once, as the scale and the bias are wide.
    wide = [array.astype(mx.float32) for array in (scales, biases)]
    matrix = mx.dequantize(weights, *wide, case.group_size, case.bits).astype(case.dtype)
    left, right = (np.array(array.astype(mx.float32), np.float64) for array in (x, matrix))
    expected = left @ right.T
    error = np.abs(np.array(found.astype(mx.float32)) - expected)
    bound = PRECISION[case.dtype] * np.abs(expected) + 2e-6 * (np.abs(left) @ np.abs(right).T)
    assert (error <= bound).all(), (error / bound).max()


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(case=cases(), num_cores=st.sampled_from([1, 4, 40]))
def test_products_match_float64(case: Case, num_cores: int) -> None:
    with execution(backwards=case.seed % 2 == 1, num_cores=num_cores):
        check(case)


def test_splits_are_summed_up_again_and_again() -> None:
    # The counters that tell which split comes last are used by each product.
    case = Case(rows=3, outputs=130, chunks=40, group_size=64, bits=4, dtype=mx.bfloat16)
    for _ in range(3):
        with execution(num_cores=132):
            check(case)


def test_one_product_is_one_launch() -> None:
    with execution(num_cores=132):
        check(Case(5, 64, 24, 64, 4, mx.float16))
        operators().take_nodes()
        check(Case(5, 64, 24, 64, 4, mx.float16))
    (node,) = operators().take_nodes()
    assert node[0] == "quantized_product_half_4_1"


def test_rows_may_lie_anywhere() -> None:
    case = Case(6, 40, 2, 64, 4, mx.bfloat16)
    x, (weights, scales, biases) = case.x(), case.quantized()
    options = {"group_size": 64, "bits": 4}
    with execution():
        expected = operators().quantized_product(x, weights, scales, biases, **options)
        turned = mx.contiguous(x.T).T.reshape(2, 3, 1, -1)
        found = operators().quantized_product(turned, weights, scales, biases, **options)
        none = operators().quantized_product(x[:0], weights, scales, biases, **options)
        mx.eval(expected, found, none)
    assert found.shape == (2, 3, 1, 40)
    np.testing.assert_array_equal(
        np.array(found.reshape(6, 40).astype(mx.float32)), np.array(expected.astype(mx.float32))
    )
    assert none.shape == (0, 40)


def test_a_row_gets_the_same_whoever_is_computed_with_it() -> None:
    case = Case(64, 96, 9, 64, 4, mx.bfloat16)
    x, quantized = case.x(), case.quantized()
    options = {"group_size": 64, "bits": 4}
    with execution(num_cores=132):
        alone, *others = (
            np.array(
                operators().quantized_product(x[:rows], *quantized, **options).astype(mx.float32)
            )
            for rows in (1, 9, 20, 64)
        )
    for other in others:
        np.testing.assert_array_equal(other[:1], alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 3}, "bits must be 4 or 8"),
        ({"group_size": 16}, "group_size must be 32, 64 or 128"),
        ({"x": mx.zeros((2, 256), mx.float32)}, "float16 or bfloat16"),
        ({"x": mx.zeros((2, 128), mx.float16)}, "of one depth"),
        ({"scales": mx.zeros((8, 4), mx.float32)}, "of the dtype of x"),
        ({"biases": mx.zeros((8, 3), mx.float16)}, "of one depth"),
    ],
)
def test_what_there_is_no_kernel_for_is_refused(change: dict[str, object], message: str) -> None:
    arguments = {
        "x": mx.zeros((2, 256), mx.float16),
        "weights": mx.zeros((8, 32), mx.uint32),
        "scales": mx.zeros((8, 4), mx.float16),
        "biases": mx.zeros((8, 4), mx.float16),
        "group_size": 64,
        "bits": 4,
    }
    with pytest.raises(ValueError, match=message):
        operators().quantized_product(**(arguments | change))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_121a"])
@pytest.mark.parametrize("element", ["bfloat", "half"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_it_compiles(tiles: int, bits: int, element: str, architecture: str) -> None:
    resources = compile_kernel(
        "quantized_product",
        "quantized_product",
        element,
        "QuantizedProduct",
        128,
        architecture,
        False,
        sizes=(bits, tiles),
    )
    # With 168 a multiprocessor has room for three blocks of 128 threads.
    assert resources.registers <= 168
    assert resources.spilled_bytes == 0
