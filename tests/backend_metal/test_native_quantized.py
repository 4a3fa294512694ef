"""Products with quantized matrices, against float64 and bit for bit: against the same arithmetic in
NumPy where they are of integers, against a float32 product elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import native
from backend_metal.devices.cpu.blas import blas_in_use
from tests.support.fuzzing import fuzz

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    native.product_kernel() is None, reason="no kernel for this processor"
)

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
SCALES = (mx.float32, mx.float16, mx.bfloat16)
# Around the rows of a decode step (8), a vector's (16), register tiles (48), a pass (384).
ROWS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 48, 65, 385)
CHUNK = 64
"""Elements of a row that become integers with one scale."""
ROUNDED = 5e-5
"""Of a result, what 16 bits for an element of a row cost."""


@dataclass(frozen=True)
class Quantized:
    """The transpose of a quantized matrix ``[columns, depth]``."""

    words: mx.array
    scales: mx.array
    biases: mx.array
    group_size: int
    bits: int

    def times(self, x: Array, indices: Array | None = None) -> Array:
        matrix = (self.words, self.scales, self.biases)
        form = (self.group_size, self.bits)
        if indices is None:
            out = native.quantized_matmul(mx.array(x), *matrix, *form)
        else:
            chosen = mx.array(indices, mx.int32)
            out = native.gather_quantized_matmul(mx.array(x), *matrix, chosen, *form)
        # numpy would lose what an evaluation raises.
        mx.eval(out)
        return np.array(out)

    @property
    def by_integers(self) -> bool:
        return self.bits in (4, 8) and self.words.shape[-1] * 32 // self.bits % CHUNK == 0

    @property
    def integers(self) -> Array:
        """float64; MLX's format spelled out: in the order of their bits."""
        words = np.array(self.words)
        shifts = np.arange(32, dtype=np.uint32)
        stream = (words[..., None] >> shifts & 1).reshape(*words.shape[:-1], -1, self.bits)
        return (stream.astype(np.float64) * 2.0 ** np.arange(self.bits)).sum(-1)

    def dequantized(self) -> Array:
        """float64."""
        scales, biases = (x.repeat(self.group_size, -1) for x in self.scales_and_biases())
        return scales * self.integers + biases

    def scales_and_biases(self) -> tuple[Array, Array]:
        """float64."""
        scales, biases = (
            np.array(x.astype(mx.float32)).astype(np.float64) for x in (self.scales, self.biases)
        )
        return scales, biases


def quantized(
    shape: tuple[int, ...],
    *,
    bits: int = 4,
    group_size: int = 64,
    dtype: mx.Dtype = mx.float16,
    seed: int = 0,
) -> Quantized:
    weights = mx.random.normal(shape, key=mx.random.key(seed)) * 0.05
    parts = mx.quantize(weights.astype(dtype), group_size, bits)
    return Quantized(*parts, group_size, bits)


def random(rows: int, depth: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, depth), np.float32)


def rounded(x: Array) -> tuple[Array, Array]:
    """Of each chunk of ``x``'s rows its elements as integers, in float64, and their scales."""
    chunks = x.reshape(len(x), -1, CHUNK)
    greatest = np.abs(chunks).max(-1, keepdims=True)
    inverse = (np.float32(32639) / greatest).astype(np.float64)
    return np.rint(chunks.astype(np.float64) * inverse), greatest / np.float32(32639)


def multiply_add(a: Array, b: Array, c: Array) -> Array:
    """float32, rounded once: float64 holds a product of two floats."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


def product_of_integers(x: Array, matrix: Quantized) -> Array:
    """The chain of float32 operations that a kernel does, one chunk after another."""
    integers, x_scales = rounded(x)
    scales, biases = (part.astype(np.float32) for part in matrix.scales_and_biases())
    part = min(CHUNK, matrix.group_size)
    weights = matrix.integers
    out = np.zeros((len(x), len(weights)), np.float32)
    for chunk in range(integers.shape[1]):
        scale = x_scales[:, chunk]
        halves = integers[:, chunk].reshape(len(x), 2, -1).sum(-1).astype(np.float32) * scale
        for number, first in enumerate(range(0, CHUNK, part)):
            at = chunk * CHUNK + first
            group = at // matrix.group_size
            sums = integers[:, chunk, first : first + part] @ weights[:, at : at + part].T
            out = multiply_add(sums.astype(np.float32), scales[:, group] * scale, out)
            of_x = halves[:, number] if part < CHUNK else halves[:, 0] + halves[:, 1]
            out = multiply_add(of_x[:, None], biases[:, group], out)
    return out


def relative_rms(actual: Array, exact: Array) -> float:
    return float(np.sqrt(np.mean((actual - exact) ** 2) / np.mean(exact**2)))


@pytest.fixture
def kernel() -> Iterator[Callable[[str], None]]:
    """Takes a kernel by name for one test."""
    before = native.product_kernel()

    def choose(name: str) -> None:
        try:
            native.set_product_kernel(name)
        except ValueError:
            pytest.skip(f"this processor has no {name}")

    yield choose
    native.set_product_kernel(before)


@fuzz(120)
@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 90),
    groups=st.integers(1, 20),
    bits=st.sampled_from(BITS),
    group_size=st.sampled_from(GROUPS),
    dtype=st.sampled_from(SCALES),
    seed=st.integers(0, 2**16),
)
def test_any_shape_and_format(
    rows: int,
    columns: int,
    groups: int,
    bits: int,
    group_size: int,
    dtype: mx.Dtype,
    seed: int,
) -> None:
    depth = groups * group_size
    matrix = quantized((columns, depth), bits=bits, group_size=group_size, dtype=dtype, seed=seed)
    x = random(rows, depth, seed)
    out, weights = matrix.times(x), matrix.dequantized().T
    # What a chain of floats loses goes with its terms, however small their sum.
    terms = np.abs(x) @ np.abs(weights)
    if matrix.by_integers:
        integers, scales = rounded(x)
        # Half a step for each element, at most.
        steps = np.broadcast_to(scales, integers.shape).reshape(rows, depth) / 2
        lost = 1.001 * steps @ np.abs(weights) + 1e-6 * terms
        assert (np.abs(out - x.astype(np.float64) @ weights) <= lost).all()
        x = (integers * scales).reshape(rows, depth)
    assert (np.abs(out - x.astype(np.float64) @ weights) <= 1e-6 * terms).all()


@pytest.mark.parametrize(("bits", "group_size"), [*product(BITS, GROUPS)])
@pytest.mark.parametrize("name", ["avx512vnni", "avx512", "avx2", "neon"])
def test_every_kernel_leaves_the_same_bits(
    name: str, bits: int, group_size: int, kernel: Callable[[str], None]
) -> None:
    """Of any number of rows, too: a request gets the same tokens alone and in a batch."""
    if blas_in_use() is None:
        pytest.skip("float32 products are another BLAS's here")
    kernel(name)
    matrix = quantized((137, 1152), bits=bits, group_size=group_size, dtype=mx.bfloat16)
    x = random(400, 1152)
    if matrix.by_integers:
        expected = product_of_integers(x, matrix)
    else:
        floats = matrix.dequantized().astype(np.float32)
        expected = np.array(mx.array(x) @ mx.array(floats).T)
    for rows in ROWS:
        assert np.array_equal(matrix.times(x[:rows]), expected[:rows]), rows
    assert np.array_equal(matrix.times(x[-3:]), expected[-3:])


@pytest.mark.parametrize("bits", [4, 8])
def test_half_a_chunk_leaves_the_bits_of_the_floats(bits: int) -> None:
    if blas_in_use() is None:
        pytest.skip("float32 products are another BLAS's here")
    matrix = quantized((70, 608), bits=bits, group_size=32, dtype=mx.bfloat16)
    assert not matrix.by_integers
    x = random(20, 608)
    expected = np.array(mx.array(x) @ mx.array(matrix.dequantized().astype(np.float32)).T)
    for rows in (1, 3, 20):
        assert np.array_equal(matrix.times(x[:rows]), expected[:rows])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", GROUPS)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_great_element_costs_its_own_chunk_alone(rows: int, bits: int, group_size: int) -> None:
    matrix = quantized((50, 384), bits=bits, group_size=group_size)
    weights = matrix.dequantized().T
    x = random(rows, 384)
    x[:, 70] = 1e6
    with_it = matrix.times(x)
    x[:, 64:128] = 0
    without = matrix.times(x)
    assert relative_rms(without, x.astype(np.float64) @ weights) < ROUNDED
    # Of the other chunks' part, what a float as great as the sum is loses.
    great = 1e6 * weights[70]
    assert (
        np.abs(with_it - great - without)
        <= 1e6 / 32639 / 2 * np.abs(weights[64:128]).sum(0) + 2e-6 * 1e6 * np.abs(weights).max()
    ).all()


@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-35, 1e-20, 1e30])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_every_size(size: float, bits: int) -> None:
    matrix = quantized((20, 128), bits=bits)
    for rows in (1, 3):
        x = random(rows, 128) * np.float32(size)
        exact = x.astype(np.float64) @ matrix.dequantized().T
        # What is smaller than 2^-100 counts as nothing.
        np.testing.assert_allclose(
            matrix.times(x), exact, rtol=0, atol=max(1e-28, 1e-4 * float(np.abs(exact).max()))
        )


@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads_and_neighbours_change_nothing(num_threads: int) -> None:
    matrix = quantized((520, 768))
    x = random(40, 768)
    expected = matrix.times(x)
    before = native.num_threads()
    try:
        native.set_num_threads(num_threads)
        for first, last in ((0, 1), (7, 9), (3, 12), (0, 40)):
            assert np.array_equal(matrix.times(x[first:last]), expected[first:last])
    finally:
        native.set_num_threads(before)


@pytest.mark.parametrize("rows", [2, 20])
def test_rows_of_any_strides_and_dimensions(rows: int) -> None:
    matrix = quantized((70, 128))
    x = random(rows, 128)
    expected = matrix.times(x)
    by_columns = mx.array(np.ascontiguousarray(x.T)).T
    parts = (matrix.words, matrix.scales, matrix.biases, 64, 4)
    assert np.array_equal(np.array(native.quantized_matmul(by_columns, *parts)), expected)
    boxed = native.quantized_matmul(mx.array(x)[None, :, None], *parts)
    assert np.array_equal(np.array(boxed), expected[None, :, None])
    assert native.quantized_matmul(mx.zeros((0, 128)), *parts).shape == (0, 70)


def test_what_is_not_a_number_stays_in_its_row() -> None:
    for bits in (4, 5, 8):
        matrix = quantized((40, 128), bits=bits)
        for rows in (8, 30):
            x = random(rows, 128)
            x[3, 5], x[4, 6] = np.nan, np.inf
            out = matrix.times(x)
            assert np.isnan(out[3]).all()
            assert not np.isfinite(out[4]).any()
            assert np.isfinite(np.delete(out, (3, 4), axis=0)).all()
        assert np.isnan(matrix.times(x[3:4])).all()


@pytest.mark.parametrize("dtype", SCALES[1:])
def test_scales_of_every_size(dtype: mx.Dtype) -> None:
    """Down to float16's numbers that are too small to be normal."""
    sizes = mx.array([2.0**-24, 2.0**-20, 2.0**-14, 1e-3, 1.0, 6e3, 1.0]).astype(dtype)
    scales, biases = sizes[:, None], -8 * sizes[:, None]
    biases[-1] = 0.0
    words = mx.random.randint(0, 2**31 - 1, (7, 4), key=mx.random.key(0)).astype(mx.uint32)
    matrix = Quantized(words, scales, biases, 32, 4)
    weights = np.eye(32, dtype=np.float32)
    np.testing.assert_array_equal(matrix.times(weights), matrix.dequantized().T.astype(np.float32))
    double = (mx.concatenate([part, part], -1) for part in (words, scales, biases))
    matrix = Quantized(*double, 32, 4)
    assert matrix.by_integers
    # Sixteen integers at most times a scale and a bias, which may cancel out.
    terms = 24 * matrix.scales_and_biases()[0][:, :1].T
    out = matrix.times(np.eye(64, dtype=np.float32))
    assert (np.abs(out - matrix.dequantized().T) <= 1e-6 * terms).all()


@pytest.mark.parametrize("rows", [1, 6, 50])
@pytest.mark.parametrize("bits", [4, 8])
def test_each_row_meets_its_matrix(rows: int, bits: int) -> None:
    stacked = quantized((5, 50, 128), bits=bits)
    x = random(rows, 128)
    indices = np.random.default_rng(0).integers(0, 5, rows)
    for chosen in (indices, np.sort(indices)):
        out = stacked.times(x, chosen)
        for row, index in enumerate(chosen):
            one = Quantized(
                stacked.words[index],
                stacked.scales[index],
                stacked.biases[index],
                stacked.group_size,
                stacked.bits,
            )
            assert np.array_equal(out[row], one.times(x[row : row + 1])[0])


@pytest.mark.parametrize("index", [-1, 5])
def test_a_matrix_that_is_not_there(index: int) -> None:
    with pytest.raises(RuntimeError, match=rf"indices must be in \[0, 5\), not {index}"):
        quantized((5, 50, 128)).times(random(1, 128), np.array([index]))


@pytest.mark.parametrize("index", [-1, 6])
def test_a_row_that_is_not_there(index: int) -> None:
    matrix = quantized((6, 128))
    parts = matrix.words, matrix.scales, matrix.biases
    rows = native.quantized_rows(mx.array([0, index]), *parts, matrix.group_size, matrix.bits)
    with pytest.raises(RuntimeError, match=rf"indices must be in \[0, 6\), not {index}"):
        mx.eval(rows)


def test_rows_by_other_arrays_are_refused() -> None:
    good = quantized((6, 128))
    for message, indices, bits in [
        ("indices must be int32", mx.array([0], mx.uint32), 4),
        ("bits must be", mx.array([0]), 7),
        ("scales must have one", mx.array([0]), 8),
    ]:
        with pytest.raises(ValueError, match=message):
            native.quantized_rows(indices, good.words, good.scales, good.biases, 64, bits)


def test_other_shapes_and_dtypes_are_refused() -> None:
    good = quantized((6, 128))
    x = mx.ones((2, 128))

    def refuse(message: str, **changed: object) -> None:
        arguments = {
            "x": x,
            "words": good.words,
            "scales": good.scales,
            "biases": good.biases,
            "group_size": 64,
            "bits": 4,
        }
        with pytest.raises(ValueError, match=message):
            native.quantized_matmul(**(arguments | changed))

    refuse("bits must be", bits=7)
    refuse("group_size must be", group_size=16)
    refuse("x must be float32", x=x.astype(mx.float16))
    refuse("x must have rows", x=mx.ones((2, 100)))
    refuse("words must have as many elements", x=mx.ones((2, 64)))
    refuse("words must have as many elements", bits=8)
    refuse("words must be uint32", words=good.words.astype(mx.int32))
    refuse("words must have one row", words=good.words[None])
    refuse("scales must be", scales=good.words[:, :2], biases=good.words[:, :2])
    refuse("scales must have one", group_size=32)
    refuse("biases must be of", biases=good.biases.astype(mx.float32))
    refuse("biases must have", biases=good.biases[:1])
    stacked = quantized((5, 6, 128))
    with pytest.raises(ValueError, match="indices must be int32"):
        stacked.times(random(2, 128), np.zeros(3))
    with pytest.raises(ValueError, match=r"x must be \[num_rows, depth\]"):
        stacked.times(random(2, 128)[None], np.zeros(1))
