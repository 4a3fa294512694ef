"""Products of few rows on CUDA: the emulator's match float64, and they compile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cuda.on_cpu.extension import execution, operators
from tests.cuda.on_cpu.nvrtc import compile_kernel
from tests.support.backend_metal.few_rows_product_cases import Case, cases, check
from tests.support.fuzzing import fuzz


@pytest.fixture(autouse=True)
def on_the_emulator() -> Iterator[None]:
    # MLX's buffers then start where the stand-in expects them.
    with mx.stream(mx.cpu):
        yield


@fuzz(60)
@given(case=cases(), num_cores=st.sampled_from([1, 4, 40]), clusters=st.booleans())
def test_products_match_float64(case: Case, num_cores: int, clusters: bool) -> None:
    backwards = case.seed % 2 == 1
    with execution(backwards=backwards, num_cores=num_cores, warpgroups=clusters):
        check(operators().few_rows_product, case)


@pytest.mark.parametrize(
    ("rows", "kernel"),
    [(8, "32_1"), (9, "32_2"), (16, "32_2"), (17, "32_4"), (33, "32_4")],
)
def test_tiles_are_as_large_as_there_are_rows(rows: int, kernel: str) -> None:
    with execution(num_cores=132):
        check(operators().few_rows_product, Case(rows, 40, 256, mx.bfloat16))
        operators().take_nodes()
        check(operators().few_rows_product, Case(rows, 40, 256, mx.bfloat16))
    (node,) = operators().take_nodes()
    assert node[0] == f"few_rows_product_bfloat_{kernel}"


def test_blocks_of_many_outputs_are_wide() -> None:
    with execution(num_cores=1):
        operators().take_nodes()
        check(operators().few_rows_product, Case(5, 130, 264, mx.float16))
    assert operators().take_nodes()[0][0] == "few_rows_product_half_64_1"


@pytest.mark.parametrize(
    ("any_rows", "outputs", "num_cores"),
    [
        pytest.param(False, 120, 4, id="a core for each tile of outputs"),
        pytest.param(False, 120, 8, id="two"),
        pytest.param(False, 200, 1, id="tiles that follow each other"),
        pytest.param(True, 120, 2, id="any rows, a core for each tile"),
        pytest.param(True, 120, 4, id="any rows, two"),
        pytest.param(True, 120, 1, id="any rows, tiles that follow each other"),
    ],
)
@pytest.mark.parametrize("rows", [1, 12, 32])
def test_blocks_of_a_deep_product_have_whole_cores(
    rows: int, any_rows: bool, outputs: int, num_cores: int
) -> None:
    case = Case(rows, outputs, 4000, mx.bfloat16)
    product = partial(operators().few_rows_product, any_rows=any_rows)
    found, kernels = [], []
    for memory_kb in (227, 99):
        with execution(num_cores=num_cores, warpgroups=True, memory_kb=memory_kb):
            check(product, case)
            operators().take_nodes()
            found.append(np.array(product(case.x(), case.weights()).astype(mx.float32)))
        kernels.append(operators().take_nodes()[-1][0].split("_product")[0])
    assert kernels == ["whole_core", "few_rows"]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("outputs", "depth"), [(120, 1496), (400, 4000)])
def test_blocks_that_have_little_to_read_or_share_a_core_leave_room(
    outputs: int, depth: int
) -> None:
    with execution(num_cores=4):
        operators().take_nodes()
        check(operators().few_rows_product, Case(5, outputs, depth, mx.bfloat16))
    assert operators().take_nodes()[0][0].startswith("few_rows_product")


@pytest.mark.parametrize("clusters", [False, True])
def test_splits_are_summed_up_again_and_again(clusters: bool) -> None:
    # The counters that tell which split comes last are used by each product.
    for _ in range(3):
        with execution(num_cores=132, warpgroups=clusters):
            check(operators().few_rows_product, Case(3, 130, 3000, mx.bfloat16))


def test_a_cluster_and_memory_join_splits_alike() -> None:
    case, found = Case(20, 130, 3000, mx.bfloat16), []
    for clusters in (False, True):
        with execution(num_cores=132, warpgroups=clusters):
            found.append(
                np.array(operators().few_rows_product(case.x(), case.weights()).astype(mx.float32))
            )
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("clusters", [False, True])
def test_a_row_gets_the_same_whoever_is_computed_with_it(clusters: bool) -> None:
    case = Case(70, 96, 1160, mx.bfloat16)
    x, weights = case.x(), case.weights()
    with execution(num_cores=132, warpgroups=clusters):
        alone, *others = (
            np.array(operators().few_rows_product(x[:rows], weights).astype(mx.float32))
            for rows in (1, 9, 20, 40, 70)
        )
    for other in others:
        np.testing.assert_array_equal(other[:1], alone)


def halves(case: Case) -> tuple[mx.array, mx.array]:
    gate, up = mx.split(operators().few_rows_product(case.x(), case.weights()), 2, axis=-1)
    return gate, up


@pytest.mark.parametrize("num_cores", [1, 132])
@pytest.mark.parametrize("rows", [1, 13, 30, 60])
@pytest.mark.parametrize(("width", "depth"), [(16, 3000), (75, 520), (256, 136)])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_an_activation_is_computed_with_its_product(
    dtype: mx.Dtype, width: int, depth: int, rows: int, num_cores: int
) -> None:
    # Not by the sum of splits, whose bits differ from those of one that has none.
    case = Case(rows, 2 * width, depth, dtype)
    with execution(num_cores=num_cores):
        gate, up = halves(case)
        mx.eval(gate, up)
        expected = operators().silu_product(gate, up)
        mx.eval(expected)
        operators().take_nodes()
        found = operators().silu_product(*halves(case))
        mx.eval(found)
    (node,) = operators().take_nodes()
    assert node[0].startswith(("gated_few_rows_product", "gated_whole_core_product"))
    # Where a sum is rounded otherwise, what follows is, too.
    np.testing.assert_allclose(
        *(np.array(array.astype(mx.float32)) for array in (found, expected)),
        rtol=6 * 2.0**-8,
        atol=1e-6,
    )
    if num_cores == 1 and depth < 3000:
        np.testing.assert_array_equal(
            *(np.array(array.astype(mx.float32)) for array in (found, expected))
        )


ROWS_OF_KERNELS = {
    227: {
        8: ("few_rows", "64_1"),
        9: ("few_rows", "64_2"),
        32: ("few_rows", "64_4"),
        33: ("whole_core", "64_8"),
        65: ("whole_core", "64_16"),
    },
    99: {32: ("few_rows", "64_4"), 33: ("few_rows", "64_8"), 65: ("few_rows", "64_8")},
}
"""Of blocks with so many KB, by how many rows there are: the kernel that computes any number of
rows alike."""


def any_rows_products(case: Case, *, gated: bool, rows: slice) -> np.ndarray:
    """Of some of the rows; ``gated``: what their activation is."""
    joined = operators().few_rows_product(case.x()[rows], case.weights(), any_rows=True)
    if gated:
        joined = operators().silu_product(*mx.split(joined, 2, axis=-1))
    return np.array(joined.astype(mx.float32))


@fuzz(40)
@given(
    case=cases(most_rows=300),
    num_cores=st.sampled_from([1, 4, 40, 132]),
    clusters=st.tuples(st.booleans(), st.booleans()),
    memory_kb=st.sampled_from([227, 227, 99]),
    gated=st.booleans(),
    data=st.data(),
)
def test_any_row_gets_the_bits_that_it_gets_alone(
    case: Case,
    num_cores: int,
    clusters: tuple[bool, bool],
    memory_kb: int,
    gated: bool,
    data: st.DataObject,
) -> None:
    if gated:
        case = replace(case, outputs=2 * case.outputs)
    with execution(
        backwards=case.seed % 2 == 1,
        num_cores=num_cores,
        warpgroups=clusters[0],
        memory_kb=memory_kb,
    ):
        if not gated:
            check(partial(operators().few_rows_product, any_rows=True), case)
        together = any_rows_products(case, gated=gated, rows=slice(None))
    first = data.draw(st.integers(0, case.rows - 1), label="first row")
    last = first + data.draw(st.sampled_from([1, 9, 17, 33, 65]), label="rows")
    for rows in (slice(first, first + 1), slice(first, last)):
        with execution(num_cores=num_cores, warpgroups=clusters[1]):
            found = any_rows_products(case, gated=gated, rows=rows)
        np.testing.assert_array_equal(found, together[rows])


@pytest.mark.parametrize(
    ("memory_kb", "rows"), [(kb, rows) for kb, own in ROWS_OF_KERNELS.items() for rows in own]
)
def test_any_number_of_rows_has_a_kernel(memory_kb: int, rows: int) -> None:
    with execution(num_cores=132, memory_kb=memory_kb):
        operators().take_nodes()
        check(partial(operators().few_rows_product, any_rows=True), Case(rows, 70, 264, mx.float16))
    node = operators().take_nodes()[-1]
    kind, sizes = ROWS_OF_KERNELS[memory_kb][rows]
    assert node[0] == f"{kind}_product_half_{sizes}"


@pytest.mark.parametrize("rows", [1, 40, 100])
def test_an_activation_of_any_rows_has_the_bits_that_it_has_behind_its_product(rows: int) -> None:
    # Of 132 cores few outputs leave some idle, so that the depth is shared out, and of one none.
    for num_cores, kernels in {132: 2, 1: 1}.items():
        case = Case(rows, 150, 1160, mx.bfloat16)
        with execution(num_cores=num_cores):
            joined = operators().few_rows_product(case.x(), case.weights(), any_rows=True)
            mx.eval(joined)
            gate, up = mx.split(joined, 2, axis=-1)
            mx.eval(gate, up)
            expected = np.array(operators().silu_product(gate, up).astype(mx.float32))
            operators().take_nodes()
            found = any_rows_products(case, gated=True, rows=slice(None))
        names = [node[0] for node in operators().take_nodes()]
        assert len([name for name in names if not name.startswith("pack")]) == kernels
        np.testing.assert_array_equal(found, expected)


def test_other_activations_have_a_kernel_of_their_own() -> None:
    case = Case(3, 64, 136, mx.bfloat16)
    with execution():
        gate, up = halves(case)
        for first, second in [(up, gate), (gate, gate), (gate, mx.zeros_like(up))]:
            operators().take_nodes()
            mx.eval(operators().silu_product(first, second))
            names = [node[0] for node in operators().take_nodes()]
            assert any(name.startswith("silu_product") for name in names)
        thirds = mx.split(operators().few_rows_product(case.x(), case.weights()), [16, 32], -1)
        operators().take_nodes()
        mx.eval(operators().silu_product(thirds[0], thirds[1]))
        assert "silu_product" in str(operators().take_nodes())


def test_rows_and_the_matrix_may_lie_anywhere() -> None:
    case = Case(6, 40, 136, mx.float16)
    x, weights = case.x(), case.weights()
    wide = mx.concatenate([x[:, :3], x, x[:, :5]], axis=-1)
    shifted = mx.concatenate([mx.zeros(3, mx.float16), weights.reshape(-1)])[3:].reshape(40, 136)
    mx.eval(wide, shifted)
    with execution():
        expected = operators().few_rows_product(x, weights)
        turned = mx.contiguous(x.T).T.reshape(2, 3, 1, -1)
        found = [
            operators().few_rows_product(turned, weights).reshape(6, 40),
            operators().few_rows_product(wide[:, 3:139], weights),
            operators().few_rows_product(x, shifted),
        ]
        none = operators().few_rows_product(x[:0], weights)
        mx.eval(expected, found, none)
    for array in found:
        np.testing.assert_array_equal(np.array(array), np.array(expected))
    assert none.shape == (0, 40)


@pytest.mark.parametrize(
    ("x", "weights", "message"),
    [
        (mx.zeros((2, 256), mx.float32), mx.zeros((8, 256), mx.float32), "float16 or bfloat16"),
        (mx.zeros((2, 256), mx.float16), mx.zeros((8, 256), mx.bfloat16), "of the dtype of x"),
        (mx.zeros((2, 256), mx.float16), mx.zeros((8, 128), mx.float16), "of one depth"),
        (mx.zeros((2, 12), mx.float16), mx.zeros((8, 12), mx.float16), "a multiple of 8"),
        (mx.zeros((2, 16), mx.float16), mx.zeros(16, mx.float16), "must be a matrix"),
    ],
)
def test_what_there_is_no_kernel_for_is_refused(
    x: mx.array, weights: mx.array, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        operators().few_rows_product(x, weights)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_121a"])
@pytest.mark.parametrize("element", ["bfloat", "half"])
@pytest.mark.parametrize("outputs", [32, 64])
@pytest.mark.parametrize("tiles", [1, 2, 4])
@pytest.mark.parametrize("function", ["few_rows_product", "gated_few_rows_product"])
def test_it_compiles(
    function: str, tiles: int, outputs: int, element: str, architecture: str
) -> None:
    resources = compile_kernel(
        "few_rows_product",
        function,
        element,
        "FewRowsProduct",
        256,
        architecture,
        False,
        sizes=(outputs, tiles),
    )
    # With 128 a multiprocessor has room for two blocks of 256 threads.
    assert resources.registers <= 128
    assert resources.spilled_bytes == 0


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_121a"])
@pytest.mark.parametrize("element", ["bfloat", "half"])
@pytest.mark.parametrize("gated", ["", "gated_"])
@pytest.mark.parametrize(
    ("file", "tiles"),
    [
        ("few_rows_product", 8),
        ("whole_core_product", 1),
        ("whole_core_product", 4),
        ("whole_core_product", 8),
        ("whole_core_product", 16),
    ],
)
def test_other_kernels_compile(
    file: str, tiles: int, gated: str, element: str, architecture: str
) -> None:
    resources = compile_kernel(
        file,
        gated + file,
        element,
        "FewRowsProduct",
        256,
        architecture,
        False,
        sizes=(64, tiles),
    )
    is_few = file == "few_rows_product"
    assert resources.registers <= (128 if is_few else 255)
    # Where copies are from, which no stage changes.
    assert resources.spilled_bytes <= (16 if is_few else 0)
