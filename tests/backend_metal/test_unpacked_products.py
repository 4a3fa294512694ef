"""Products of many rows with unpacked weights are those with the quantized ones."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from backend_metal.attention.recording import being_recorded
from backend_metal.models import unpacked_products
from backend_metal.models.fused_projections import fuse_projections, joined_layers
from backend_metal.models.unpacked_products import (
    FEWEST_ROWS,
    UnpackingEmbedding,
    UnpackingLinear,
    unpack_for_many_rows,
)
from tests.support.backend_metal import tiny_models


def uniform(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    values = np.random.default_rng(0).uniform(-1, 1, shape)
    return mx.array(values.astype(np.float32)).astype(dtype)


def quantized(layer: nn.Module, bits: int, group_size: int = 64) -> nn.Module:
    model = nn.Sequential(layer)
    nn.quantize(model, group_size, bits)
    return model


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("most_weights", [1 << 27, 64 * 10, 1])
@pytest.mark.parametrize("rows", [1, FEWEST_ROWS - 1, FEWEST_ROWS, 40])
def test_a_layer_computes_the_same(
    dtype: mx.Dtype,
    bits: int,
    bias: bool,
    most_weights: int,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unpacked_products, "MOST_WEIGHTS", most_weights)
    model = quantized(nn.Linear(64, 37, bias=bias), bits)
    model.set_dtype(dtype)
    x = uniform((rows, 1, 64), dtype)
    expected = model(x)
    unpack_for_many_rows(model)
    assert type(model.layers[0]) is UnpackingLinear
    quantized_products = []
    own = mx.quantized_matmul
    monkeypatch.setattr(
        mx, "quantized_matmul", lambda *a, **k: quantized_products.append(a) or own(*a, **k)
    )
    found = model(x)
    assert bool(quantized_products) == (rows < FEWEST_ROWS)
    assert found.dtype == dtype
    assert found.shape == (rows, 1, 37)
    # Of bfloat16 the weights are rounded once more.
    tolerance = 1e-5 if dtype == mx.float32 else 4e-2
    np.testing.assert_allclose(
        *(np.array(array.astype(mx.float32)) for array in (found, expected)), rtol=0, atol=tolerance
    )


def test_what_is_recorded_stays_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized(nn.Linear(64, 37), 4)
    x = uniform((2 * FEWEST_ROWS, 64), mx.float32)
    expected = np.array(model(x))
    unpack_for_many_rows(model)
    monkeypatch.setattr(mx, "dequantize", None)
    with being_recorded():
        np.testing.assert_array_equal(np.array(model(x)), expected)
    with pytest.raises(TypeError):
        model(x)


def test_an_embedding_that_is_the_head_computes_the_same() -> None:
    model = quantized(nn.Embedding(53, 64), 4)
    (embedding,) = model.layers
    ids, x = mx.array([0, 52, 7]), uniform((30, 64), mx.float32)
    rows, logits = np.array(embedding(ids)), np.array(embedding.as_linear(x))
    few = np.array(embedding.as_linear(x[:3]))
    unpack_for_many_rows(model)
    assert type(embedding) is UnpackingEmbedding
    np.testing.assert_array_equal(np.array(embedding(ids)), rows)
    np.testing.assert_allclose(np.array(embedding.as_linear(x)), logits, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(np.array(embedding.as_linear(x[:3])), few)


def test_joined_layers_unpack_and_other_formats_do_not() -> None:
    model, _ = tiny_models.build("llama")
    nn.quantize(model, 32, 4)
    fuse_projections(model)
    unpack_for_many_rows(model)
    unpack_for_many_rows(model)
    wholes = [whole for whole, _ in joined_layers(model)]
    assert wholes
    assert {type(whole) for whole in wholes} == {UnpackingLinear}
    other = nn.Sequential(nn.Linear(64, 64))
    nn.quantize(other, 32, 4, mode="mxfp4")
    unpack_for_many_rows(other)
    assert type(other.layers[0]) is nn.QuantizedLinear
