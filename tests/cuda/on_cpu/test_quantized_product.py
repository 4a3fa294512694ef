"""Products with quantized matrices on CUDA: the emulator's match float64, and they compile."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cuda.on_cpu.extension import execution, operators
from tests.cuda.on_cpu.nvrtc import compile_kernel
from tests.support.backend_metal.quantized_product_cases import Case, cases, check
from tests.support.fuzzing import fuzz


@pytest.fixture(autouse=True)
def on_the_emulator() -> Iterator[None]:
    # MLX's buffers then start where the stand-in expects them.
    with mx.stream(mx.cpu):
        yield


@fuzz(60)
@given(case=cases(), num_cores=st.sampled_from([1, 4, 40]))
def test_products_match_float64(case: Case, num_cores: int) -> None:
    with execution(backwards=case.seed % 2 == 1, num_cores=num_cores):
        check(operators().quantized_product, case)


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize(("bits", "chunks"), [(4, 19), (8, 18)])
def test_splits_start_within_what_scales_are_loaded_for(
    bits: int, chunks: int, group_size: int
) -> None:
    # Splits of three stages, while scales are loaded for two or four.
    case = Case(9, 70, chunks, group_size, bits, mx.bfloat16)
    with execution(num_cores=4):
        check(operators().quantized_product, case)


@pytest.mark.parametrize(
    ("bits", "group_size", "chunks"),
    [(4, 128, 1), (4, 128, 3), (8, 64, 5), (8, 128, 2), (8, 128, 6)],
)
def test_rows_may_have_an_odd_number_of_groups(bits: int, group_size: int, chunks: int) -> None:
    with execution():
        check(operators().quantized_product, Case(3, 70, chunks, group_size, bits, mx.float16))


def test_scales_may_start_within_a_word() -> None:
    case = Case(2, 40, 2, 64, 4, mx.bfloat16)
    x, (weights, scales, biases) = case.x(), case.quantized()
    options = {"group_size": 64, "bits": 4}
    parts = [
        mx.concatenate([mx.zeros(1, array.dtype), array.reshape(-1)])[1:].reshape(array.shape)
        for array in (scales, biases)
    ]
    mx.eval(parts)
    with execution():
        expected = operators().quantized_product(x, weights, scales, biases, **options)
        found = operators().quantized_product(x, weights, *parts, **options)
        mx.eval(expected, found)
    np.testing.assert_array_equal(
        *(np.array(array.astype(mx.float32)) for array in (found, expected))
    )


def test_splits_are_summed_up_again_and_again() -> None:
    # The counters that tell which split comes last are used by each product.
    case = Case(rows=3, outputs=130, chunks=40, group_size=64, bits=4, dtype=mx.bfloat16)
    for _ in range(3):
        with execution(num_cores=132):
            check(operators().quantized_product, case)


def test_one_product_is_one_launch() -> None:
    with execution(num_cores=132):
        check(operators().quantized_product, Case(5, 64, 24, 64, 4, mx.float16))
        operators().take_nodes()
        check(operators().quantized_product, Case(5, 64, 24, 64, 4, mx.float16))
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


def test_parts_of_larger_arrays_are_taken_as_they_are() -> None:
    case = Case(1, 96, 2, 64, 4, mx.bfloat16)
    x, quantized = case.x(), case.quantized()
    options = {"group_size": 64, "bits": 4}
    # As where q, k and v were laid one behind another, and a row that starts at no multiple of 16.
    parts = [mx.split(array, [40], 0)[1] for array in quantized]
    wide = mx.concatenate([x[:, :3], x, x[:, :5]], axis=-1)
    mx.eval(parts, wide)
    with execution():
        expected = operators().quantized_product(x, *quantized, **options)[:, 40:]
        mx.eval(expected)
        operators().take_nodes()
        found = operators().quantized_product(wide[:, 3 : 3 + case.depth], *parts, **options)
        mx.eval(found)
    nodes = [node[0] for node in operators().take_nodes()]
    assert nodes == ["pack_rows_unsigned short", "quantized_product_bfloat_4_1"]
    np.testing.assert_array_equal(
        *(np.array(array.astype(mx.float32)) for array in (found, expected))
    )
