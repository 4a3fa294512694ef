"""Float32 weights that lie as products on the CPU read them: the same bits, and no second copy."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from backend_metal import native
from backend_metal.devices.cpu.blas import multiplies_rows_alike
from backend_metal.devices.cpu.panels import (
    PanelEmbedding,
    PanelLinear,
    is_read,
    lay_in_panels,
    may_lie_in_panels,
    take_out_of_panels,
)
from backend_metal.models.layers.fused_projections import fuse_projections, joined_layers
from backend_metal.models.layers.panel_weights import lay_weights_in_panels
from tests.support.backend_metal import tiny_models
from tests.support.fuzzing import fuzz

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or mx.cuda.is_available(),
    reason="MLX has a BLAS of its own here",
)
KERNELS = ("avx512vnni", "avx512", "avx2", "neon")


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    kernel, threads = native.product_kernel(), native.num_threads()
    with mx.stream(mx.cpu):
        yield
    assert kernel is not None
    native.set_product_kernel(kernel)
    native.set_num_threads(threads)


def uniform(shape: tuple[int, ...], seed: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32))


def take(kernel: str) -> None:
    try:
        native.set_product_kernel(kernel)
    except ValueError:
        pytest.skip("this processor has no such kernel")


@pytest.mark.parametrize("kernel", KERNELS)
@fuzz(120)
@given(
    # Around the rows of a kernel, panels of 8, groups of 64 columns and depths of 512.
    rows=st.sampled_from([1, 2, 3, 4, 5, 8, 9, 16, 17, 47, 49, 100]),
    columns=st.integers(1, 140) | st.sampled_from([511, 1000]),
    depth=st.integers(1, 80) | st.sampled_from([511, 512, 513, 1100]),
    leading=st.sampled_from([(), (1,), (2, 1)]),
    seed=st.integers(0, 99),
)
def test_products_have_the_bits_of_mlxs_own(
    kernel: str, rows: int, columns: int, depth: int, leading: tuple[int, ...], seed: int
) -> None:
    assert multiplies_rows_alike()
    take(kernel)
    x, weight = uniform((*leading, rows, depth), seed), uniform((columns, depth), seed + 1)
    panels = native.lay_in_panels(weight)
    assert panels.shape == (-(-columns // 8), depth, 8)
    out = native.panel_product(x, panels, columns)
    assert out.shape == (*leading, rows, columns)
    np.testing.assert_array_equal(np.array(out), np.array(x @ weight.T))


@pytest.mark.parametrize("kernel", KERNELS)
@fuzz(60)
@given(
    rows=st.sampled_from([1, 1, 2, 3, 5, 8]),
    # Tasks of few panels, and of many, whose streams end together or not.
    columns=st.integers(1, 300) | st.integers(1000, 6000),
    depth=st.sampled_from([1, 2, 47, 512, 513]),
    threads=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_few_rows_have_the_bits_that_they_have_among_others(
    kernel: str, rows: int, columns: int, depth: int, threads: int, seed: int
) -> None:
    take(kernel)
    x, weight = uniform((9, depth), seed), uniform((columns, depth), seed + 1)
    panels = native.lay_in_panels(weight)
    native.set_num_threads(threads)
    alone = native.panel_product(x[1 : 1 + rows], panels, columns)
    together = native.panel_product(x, panels, columns)
    np.testing.assert_array_equal(np.array(alone), np.array(together[1 : 1 + rows]))


def test_inputs_in_another_order_are_read_as_they_are() -> None:
    weight = uniform((24, 40), 0)
    panels = native.lay_in_panels(mx.contiguous(weight.T).T)
    x = uniform((40, 6), 1).T
    out = native.panel_product(x, panels, 24)
    np.testing.assert_array_equal(np.array(out), np.array(mx.contiguous(x) @ weight.T))


@pytest.mark.parametrize(
    ("x", "panels", "columns", "message"),
    [
        (mx.zeros((2, 4), mx.float16), mx.zeros((1, 4, 8)), 8, "float32"),
        (mx.zeros((2, 4)), mx.zeros((1, 4, 8), mx.bfloat16), 8, "float32"),
        (mx.zeros((2, 4)), mx.zeros((1, 4, 16)), 8, "8 columns"),
        (mx.zeros((2, 4)), mx.zeros((4, 8)), 8, "8 columns"),
        (mx.zeros((2, 5)), mx.zeros((1, 4, 8)), 8, "as many elements a row"),
        (mx.array(1.0), mx.zeros((1, 4, 8)), 8, "as many elements a row"),
        (mx.zeros((2, 4)), mx.zeros((1, 4, 8)), 9, "num_columns"),
        (mx.zeros((2, 4)), mx.zeros((2, 4, 8)), 8, "num_columns"),
        (mx.zeros((2, 4)), mx.zeros((0, 4, 8)), 0, "num_columns"),
    ],
)
def test_other_shapes_and_dtypes_are_refused(
    x: mx.array, panels: mx.array, columns: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        native.panel_product(x, panels, columns)


@pytest.mark.parametrize("weight", [mx.zeros((3, 4), mx.float16), mx.zeros(4), mx.zeros((0, 4))])
def test_only_matrices_lie_in_panels(weight: mx.array) -> None:
    with pytest.raises(ValueError, match="weight must be"):
        native.lay_in_panels(weight)


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_computes_as_before_and_back(bias: bool) -> None:
    layer = nn.Linear(70, 45, bias=bias)
    x = uniform((3, 1, 70), 2)
    weight, expected = np.array(layer.weight), np.array(layer(x))
    assert may_lie_in_panels(layer)
    lay_in_panels(layer)
    assert type(layer) is PanelLinear
    assert not may_lie_in_panels(layer)
    assert set(layer) == ({"panels", "bias"} if bias else {"panels"})
    np.testing.assert_allclose(np.array(layer(x)), expected, rtol=0, atol=1e-6)
    assert not is_read(layer)
    np.testing.assert_array_equal(np.array(layer.weight), weight)
    assert is_read(layer)
    take_out_of_panels(layer)
    assert type(layer) is nn.Linear
    np.testing.assert_array_equal(np.array(layer["weight"]), weight)
    np.testing.assert_array_equal(np.array(layer(x)), expected)


def test_an_embedding_that_is_the_head_does_both() -> None:
    layer = nn.Embedding(77, 40)
    ids, x = mx.array([[0], [76], [8], [8], [-1], [-77]]), uniform((5, 1, 40), 3)
    rows, logits = np.array(layer(ids)), np.array(layer.as_linear(x))
    lay_in_panels(layer)
    assert type(layer) is PanelEmbedding
    np.testing.assert_array_equal(np.array(layer(ids)), rows)
    np.testing.assert_array_equal(np.array(layer.as_linear(x)), logits)


def test_no_rows_are_none() -> None:
    panels = native.lay_in_panels(uniform((9, 4000), 0))
    assert native.panel_product(mx.zeros((0, 1, 4000)), panels, 9).shape == (0, 1, 9)
    mx.eval(native.panel_product(mx.zeros((0, 4000)), panels, 9))
    assert np.array(native.panel_rows(mx.zeros(0, mx.int32), panels, 9)).shape == (0, 4000)


@pytest.mark.parametrize(
    ("indices", "panels", "rows", "message"),
    [
        (mx.zeros(2), mx.zeros((1, 4, 8)), 8, "int32"),
        (mx.zeros(2, mx.int32), mx.zeros((1, 4, 8), mx.float16), 8, "float32"),
        (mx.zeros(2, mx.int32), mx.zeros((1, 4, 8)), 9, "num_columns"),
    ],
)
def test_rows_of_other_shapes_and_dtypes_are_refused(
    indices: mx.array, panels: mx.array, rows: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        native.panel_rows(indices, panels, rows)


def test_weights_that_somebody_sets_are_the_layers() -> None:
    layer = nn.Linear(16, 24, bias=False)
    lay_in_panels(layer)
    layer.weight = layer.weight * 2
    assert type(layer) is nn.Linear
    assert set(layer) == {"weight"}
    x = uniform((2, 16), 4)
    np.testing.assert_array_equal(np.array(layer(x)), np.array(x @ layer["weight"].T))


def test_layers_of_other_kinds_stay_as_they_are() -> None:
    class Adapter(nn.Linear):  # type: ignore[misc]
        pass

    halved = nn.Linear(16, 16)
    halved.set_dtype(mx.bfloat16)
    others = [Adapter(16, 16), halved, nn.RMSNorm(16), nn.QuantizedLinear(64, 16)]
    assert not any(map(may_lie_in_panels, others))


class Reading(nn.Module):  # type: ignore[misc]
    """Of layers and of an embedding one computes, the other's weights are read, or looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.read = nn.Linear(32, 32), nn.Linear(32, 32)
        self.head, self.looked_up = nn.Embedding(40, 32), nn.Embedding(40, 32)
        self.twice = [self.called, self.called]

    def __call__(self, x: mx.array) -> mx.array:
        x = self.called(x) @ self.read.weight.T + self.looked_up(mx.zeros(1, mx.int32))
        return self.head.as_linear(x)


class Joining(nn.Module):  # type: ignore[misc]
    """Projections of one input, one of which is asked for its weights."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self._reads = reads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(32, n) for n in (32, 16, 16))

    def __call__(self, x: mx.array) -> mx.array:
        if self._reads:
            x = x @ self.k_proj.weight.T @ self.k_proj.weight
        return mx.concatenate([self.q_proj(x), self.k_proj(x), self.v_proj(x)], axis=-1)


@pytest.mark.parametrize("reads", [False, True])
def test_joined_layers_whose_weights_a_model_reads_keep_them(reads: bool) -> None:
    model = Joining(reads)
    x = uniform((3, 32), 5)
    expected = np.array(model(x))
    fuse_projections(model)
    lay_weights_in_panels(model, lambda: mx.eval(model(x)))
    ((whole, parts),) = joined_layers(model)
    assert type(whole) is (nn.Linear if reads else PanelLinear)
    assert sorted(part.weight.shape for part in parts) == [(16, 32), (16, 32), (32, 32)]
    np.testing.assert_allclose(np.array(model(x)), expected, rtol=0, atol=1e-5)


def test_layers_whose_weights_a_model_reads_keep_them() -> None:
    model = Reading()

    def forward() -> None:
        model(mx.zeros((1, 32)))

    lay_weights_in_panels(model, forward)
    assert type(model.called) is PanelLinear
    assert type(model.read) is nn.Linear
    assert "weight" in model.read
    assert type(model.head) is PanelEmbedding
    assert type(model.looked_up) is nn.Embedding


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_there_is_no_second_copy_of_any_weight(family: str) -> None:
    model: Any
    model, _ = tiny_models.build(family)
    mx.eval(model.parameters())
    fuse_projections(model)
    gc.collect()
    # What is there beside weights, of other tests, stays as it is.
    matrices = sum(
        layer.weight.nbytes
        for layer in [*model.modules(), *(whole for whole, _ in joined_layers(model))]
        if type(layer) in (nn.Linear, nn.Embedding)
    )
    before = mx.get_active_memory()
    lay_weights_in_panels(model, lambda: None)
    gc.collect()
    assert joined_layers(model)
    assert mx.get_active_memory() - before <= 0.05 * matrices
    kept = {name.rpartition(".")[2] for name, _ in tree_flatten(model.parameters())}
    assert "panels" in kept
    for whole, parts in joined_layers(model):
        assert type(whole) is PanelLinear
        assert not any("weight" in part for part in parts)
