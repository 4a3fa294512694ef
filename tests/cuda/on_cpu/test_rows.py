"""The CUDA kernels that have whole rows: they compile, and on the emulator they round where MLX's
operators do."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given

from backend_metal.devices.row_operators import RowOperators
from tests.cuda.on_cpu.extension import execution, operators
from tests.cuda.on_cpu.nvrtc import compile_kernel
from tests.support.backend_metal.row_cases import (
    Case,
    cases,
    check_norm,
    check_silu,
    exact_norm,
    rounded_silu,
)
from tests.support.fuzzing import fuzz


@pytest.fixture(autouse=True)
def on_the_emulator() -> Iterator[None]:
    # MLX's buffers then start where the stand-in expects them.
    with mx.stream(mx.cpu):
        yield


def rows() -> RowOperators:
    return RowOperators(operators().rms_norm_of_sum, operators().silu_product)


@fuzz(100)
@given(case=cases())
def test_sums_and_norms_are_mlxs(case: Case) -> None:
    with execution(backwards=case.seed % 2 == 1):
        check_norm(rows(), case, expected=exact_norm)


@fuzz(100)
@given(case=cases(most_rows=3, most_dims=5))
def test_activations_are_rounded_behind_each_operation(case: Case) -> None:
    with execution(backwards=case.seed % 2 == 1):
        # An exponential may be the other neighbour.
        check_silu(rows(), case, expected=rounded_silu, most_ulps=4)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_activations_at_the_extremes(dtype: mx.Dtype) -> None:
    gate = mx.array([-mx.inf, -1e4, -100.0, -0.0, 0.0, 100.0, 1e4, mx.inf, mx.nan], dtype)
    with execution():
        out = np.array(operators().silu_product(gate, mx.ones(9, dtype)).astype(mx.float32))
    # As MLX has it, whose sigmoid of minus infinity is 0.
    assert np.isnan(out[0])
    assert np.all(np.abs(out[1:5]) < 1e-30)
    np.testing.assert_allclose(out[5:8], [100.0, 1e4, np.inf], rtol=4e-3)
    assert np.isnan(out[8])


@pytest.mark.parametrize("layout", ["joined", "shifted"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_each_is_one_launch(layout: str, dtype: mx.Dtype) -> None:
    case = Case((4, 1, 2048), (layout, layout), dtype, seed=1)
    operators().take_nodes()
    with execution():
        check_norm(rows(), case, expected=exact_norm)
        check_silu(rows(), case, expected=rounded_silu, most_ulps=4)
    names = [node[0] for node in operators().take_nodes()]
    assert [name.split("_float")[0].split("_bfloat")[0] for name in names] == [
        "add_rms_norm",
        "silu_product",
    ]


def test_other_activations_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape and dtype"):
        operators().silu_product(mx.ones((2, 3)), mx.ones((3, 2)))
    with pytest.raises(ValueError, match="one shape and dtype"):
        operators().silu_product(mx.ones(2), mx.ones(2, mx.float16))
    with pytest.raises(ValueError, match="float32, float16 or bfloat16"):
        operators().silu_product(mx.ones(2, mx.int32), mx.ones(2, mx.int32))
    with pytest.raises(ValueError, match="a dimension"):
        operators().silu_product(mx.array(1.0), mx.array(1.0))
    assert operators().silu_product(mx.ones((0, 4)), mx.ones((0, 4))).tolist() == []


@pytest.mark.parametrize(
    ("width", "itemsize", "block"),
    [
        (1, 2, (64, 1)),
        (512, 2, (64, 1)),
        (520, 2, (128, 1)),
        (1024, 2, (128, 1)),
        (2560, 2, (64, 5)),
        (2880, 2, (128, 3)),
        (4096, 2, (128, 4)),
        (8192, 2, (128, 8)),
        (8200, 2, (1024, 0)),
        (4096, 4, (128, 8)),
        (5120, 4, (1024, 0)),
    ],
)
def test_a_row_is_shared_out_as_by_mlx(width: int, itemsize: int, block: tuple[int, int]) -> None:
    assert operators().norm_block(width, itemsize) == block


@pytest.mark.parametrize("element", ["bfloat", "half", "float"])
@pytest.mark.parametrize(
    ("threads", "chunks", "registers"),
    [(64, 1, 40), (128, 3, 64), (128, 4, 80), (128, 8, 128), (1024, 0, 64)],
)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_norms_compile(
    architecture: str, threads: int, chunks: int, registers: int, element: str
) -> None:
    resources = compile_kernel(
        "add_rms_norm",
        "add_rms_norm",
        element,
        "AddRmsNorm",
        threads,
        architecture,
        True,
        sizes=(threads, chunks),
    )
    assert resources.spilled_bytes == 0
    assert resources.registers <= registers


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("element", ["bfloat", "half", "float"])
def test_activations_compile(element: str, aligned: bool) -> None:
    resources = compile_kernel(
        "silu_product", "silu_product", element, "SiluProduct", 128, "sm_90a", aligned
    )
    assert resources.spilled_bytes == 0
    # With 32 a multiprocessor has room for all threads that it can have.
    assert resources.registers <= (32 if aligned else 48)
