"""Products by rows are those with the quantized weights, by whichever of the ways."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from backend_metal.cuda import quantized_products
from backend_metal.cuda.quantized_products import (
    MOST_ROWS,
    QuantizedEmbeddingByRows,
    QuantizedLinearByRows,
    compute_products_by_rows,
)
from backend_metal.devices.recording import being_recorded
from backend_metal.models.layers.fused_projections import (
    all_layers,
    fuse_projections,
    joined_layers,
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
@pytest.mark.parametrize("rows", [1, MOST_ROWS, MOST_ROWS + 1])
def test_a_layer_computes_the_same(
    dtype: mx.Dtype,
    bits: int,
    bias: bool,
    most_weights: int,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantized_products, "MOST_WEIGHTS", most_weights)
    model = quantized(nn.Linear(64, 37, bias=bias), bits)
    model.set_dtype(dtype)
    x = uniform((rows, 1, 64), dtype)
    expected = model(x)
    compute_products_by_rows(all_layers(model), None)
    assert type(model.layers[0]) is QuantizedLinearByRows
    by_mlx = []
    own = mx.quantized_matmul
    monkeypatch.setattr(mx, "quantized_matmul", lambda *a, **k: by_mlx.append(a) or own(*a, **k))
    found = model(x)
    assert bool(by_mlx) == (rows <= MOST_ROWS)
    assert found.dtype == dtype
    assert found.shape == (rows, 1, 37)
    # Of bfloat16 the weights are rounded once more.
    tolerance = 1e-5 if dtype == mx.float32 else 4e-2
    np.testing.assert_allclose(
        *(np.array(array.astype(mx.float32)) for array in (found, expected)), rtol=0, atol=tolerance
    )


def test_what_is_recorded_stays_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized(nn.Linear(64, 37), 4)
    x = uniform((2 * MOST_ROWS, 64), mx.float32)
    expected = np.array(model(x))
    compute_products_by_rows(all_layers(model), None)
    monkeypatch.setattr(mx, "dequantize", None)
    with being_recorded():
        np.testing.assert_array_equal(np.array(model(x)), expected)
    with pytest.raises(TypeError):
        model(x)


def test_an_embedding_that_is_the_head_computes_the_same() -> None:
    model = quantized(nn.Embedding(53, 64), 4)
    (embedding,) = model.layers
    ids, x = mx.array([0, 52, 7]), uniform((MOST_ROWS + 3, 64), mx.float32)
    rows, logits = np.array(embedding(ids)), np.array(embedding.as_linear(x))
    few = np.array(embedding.as_linear(x[:3]))
    compute_products_by_rows(all_layers(model), None)
    assert type(embedding) is QuantizedEmbeddingByRows
    np.testing.assert_array_equal(np.array(embedding(ids)), rows)
    np.testing.assert_allclose(np.array(embedding.as_linear(x)), logits, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(np.array(embedding.as_linear(x[:3])), few)


def test_joined_layers_unpack_and_other_formats_do_not() -> None:
    model, _ = tiny_models.build("llama")
    nn.quantize(model, 32, 4)
    fuse_projections(model)
    compute_products_by_rows(all_layers(model), None)
    compute_products_by_rows(all_layers(model), None)
    wholes = [whole for whole, _ in joined_layers(model)]
    assert wholes
    assert {type(whole) for whole in wholes} == {QuantizedLinearByRows}
    other = nn.Sequential(nn.Linear(64, 64))
    nn.quantize(other, 32, 4, mode="mxfp4")
    compute_products_by_rows(all_layers(other), None)
    assert type(other.layers[0]) is nn.QuantizedLinear


class Kernel:
    """The product that a kernel computes, and how often it was asked for it."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self.calls = 0

    def __call__(self, x: mx.array, *arrays: mx.array, group_size: int, bits: int) -> mx.array:
        self.calls += 1
        return self.factor * (x @ mx.dequantize(*arrays, group_size=group_size, bits=bits).T)


@pytest.mark.parametrize("bias", [False, True])
def test_few_rows_are_the_kernels(bias: bool) -> None:
    model = quantized(nn.Linear(256, 37, bias=bias), 4)
    model.set_dtype(mx.bfloat16)
    kernel = Kernel()
    few, many = uniform((3, 1, 256), mx.bfloat16), uniform((MOST_ROWS + 1, 256), mx.bfloat16)
    expected = model(few)
    compute_products_by_rows(all_layers(model), kernel)
    assert kernel.calls > 0  # the check
    kernel.calls = 0
    found = model(few)
    assert kernel.calls == 1
    np.testing.assert_allclose(
        *(np.array(array.astype(mx.float32)) for array in (found, expected)), rtol=0, atol=0.1
    )
    model(many)
    model(few.astype(mx.float32))
    assert kernel.calls == 1
    with being_recorded():
        model(many)
    assert kernel.calls == 2


@pytest.mark.parametrize(
    ("depth", "bits", "group_size", "dtype"),
    [(64, 4, 64, mx.bfloat16), (256, 3, 64, mx.bfloat16), (256, 4, 64, mx.float32)],
)
def test_what_there_is_no_kernel_for_stays_mlx(
    depth: int, bits: int, group_size: int, dtype: mx.Dtype
) -> None:
    model = quantized(nn.Linear(depth, 37), bits, group_size)
    model.set_dtype(dtype)
    x, kernel = uniform((3, depth), dtype), Kernel()
    expected = np.array(model(x).astype(mx.float32))
    compute_products_by_rows(all_layers(model), kernel)
    np.testing.assert_array_equal(np.array(model(x).astype(mx.float32)), expected)
    assert kernel.calls == 0


class WrongOnce(Kernel):
    """About as many rows, or as many outputs, as only a part of the check has."""

    def __init__(self, rows: int | None = None, outputs: int | None = None) -> None:
        super().__init__()
        self.wrong = rows, outputs

    def __call__(self, x: mx.array, *arrays: mx.array, group_size: int, bits: int) -> mx.array:
        is_wrong = x.shape[0] == self.wrong[0] or arrays[0].shape[0] == self.wrong[1]
        self.factor = 1.05 if is_wrong else 1.0
        return super().__call__(x, *arrays, group_size=group_size, bits=bits)


def fail(*_arrays: mx.array, **_options: int) -> mx.array:
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (Kernel(1.05), "5.0e-02, of 5 rows"),
        (fail, "no such kernel"),
        *((WrongOnce(rows=rows), f"of {rows} rows") for rows in quantized_products.ROWS_CHECKED),
        (WrongOnce(outputs=64), "and 64 outputs"),
        (WrongOnce(outputs=70), "of 5 rows"),
    ],
)
def test_a_wrong_kernel_does_not_serve(
    kernel: Kernel, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = quantized(nn.Linear(256, 70), 4)
    model.set_dtype(mx.float16)
    x = uniform((3, 256), mx.float16)
    expected = np.array(model(x))
    compute_products_by_rows(all_layers(model), kernel)
    np.testing.assert_array_equal(np.array(model(x)), expected)
    assert message in caplog.text


def test_a_matrix_of_zeros_is_no_fault_of_the_kernel() -> None:
    model = quantized(nn.Linear(256, 70), 4)
    model.set_dtype(mx.float16)
    layer = model.layers[0]
    layer.scales, layer.biases = mx.zeros_like(layer.scales), mx.zeros_like(layer.biases)
    compute_products_by_rows(all_layers(model), Kernel())
    assert layer.has_kernel
