"""Products of few rows are those of MLX, by a kernel that is right."""

from __future__ import annotations

import logging

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from backend_metal.cuda.few_rows_products import (
    MOST_ROWS,
    EmbeddingByRows,
    LinearByRows,
    compute_few_rows,
)
from backend_metal.models.layers.fused_projections import (
    all_layers,
    fuse_projections,
    joined_layers,
)
from tests.support.backend_metal import tiny_models


class Kernel:
    """The product that a kernel computes, and how often it was asked for it."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self.calls = 0

    def __call__(self, x: mx.array, weights: mx.array) -> mx.array:
        self.calls += 1
        return self.factor * (x @ weights.T)


def uniform(shape: tuple[int, ...], dtype: mx.Dtype = mx.bfloat16) -> mx.array:
    values = np.random.default_rng(0).uniform(-1, 1, shape)
    return mx.array(values.astype(np.float32)).astype(dtype)


def model_of(layer: nn.Module, dtype: mx.Dtype = mx.bfloat16) -> nn.Module:
    model = nn.Sequential(layer)
    model.set_dtype(dtype)
    return model


def assert_same(found: mx.array, expected: mx.array) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(
        *(np.array(array.astype(mx.float32)) for array in (found, expected)), rtol=0, atol=2e-2
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_few_rows_are_the_kernels(dtype: mx.Dtype, bias: bool) -> None:
    model, kernel = model_of(nn.Linear(64, 37, bias=bias), dtype), Kernel()
    few, many = uniform((MOST_ROWS, 1, 64), dtype), uniform((MOST_ROWS + 1, 64), dtype)
    expected = model(few), model(many)
    compute_few_rows(all_layers(model), kernel)
    assert type(model.layers[0]) is LinearByRows
    assert kernel.calls > 0  # the check
    kernel.calls = 0
    assert_same(model(few), expected[0])
    assert kernel.calls == 1
    assert_same(model(many), expected[1])
    model(few.astype(mx.float32))
    assert kernel.calls == 1


def test_an_embedding_that_is_the_head_computes_the_same() -> None:
    model, kernel = model_of(nn.Embedding(53, 64)), Kernel()
    (embedding,) = model.layers
    ids, x, many = mx.array([0, 52, 7]), uniform((3, 64)), uniform((MOST_ROWS + 3, 64))
    expected = [embedding(ids), embedding.as_linear(x), embedding.as_linear(many)]
    compute_few_rows(all_layers(model), kernel)
    assert type(embedding) is EmbeddingByRows
    kernel.calls = 0
    found = [embedding(ids), embedding.as_linear(x), embedding.as_linear(many)]
    assert kernel.calls == 1
    for array, own in zip(found, expected, strict=True):
        assert_same(array, own)


def test_joined_layers_are_computed_so_and_those_within_are_not() -> None:
    model, _ = tiny_models.build("llama")
    model.set_dtype(mx.bfloat16)
    fuse_projections(model)
    parts = {id(part): type(part) for _, own in joined_layers(model) for part in own}
    for _ in range(2):
        compute_few_rows(all_layers(model), Kernel())
    assert {type(whole) for whole, _ in joined_layers(model)} == {LinearByRows}
    assert {id(part): type(part) for _, own in joined_layers(model) for part in own} == parts


@pytest.mark.parametrize(
    ("layer", "dtype"),
    [
        (nn.Linear(64, 37), mx.float32),
        (nn.Linear(36, 37), mx.float16),
        (nn.QuantizedLinear(64, 37), mx.float16),
    ],
)
def test_what_there_is_no_kernel_for_stays_mlx(layer: nn.Module, dtype: mx.Dtype) -> None:
    model, kind, kernel = model_of(layer, dtype), type(layer), Kernel()
    compute_few_rows(all_layers(model), kernel)
    assert type(layer) is kind
    assert kernel.calls == 0


def test_a_kernel_that_is_wrong_does_not_serve(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of(nn.Linear(64, 37))
    with caplog.at_level(logging.ERROR):
        compute_few_rows(all_layers(model), Kernel(1.1))
    assert type(model.layers[0]) is nn.Linear
    assert "The kernel for few rows" in caplog.text
    assert "wrong on this machine" in caplog.text
