from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from mlx_lm.models.activations import swiglu

from backend_metal import native
from backend_metal.devices.cpu import activations
from backend_metal.devices.cpu.native_scope import native_layers
from backend_metal.models.layers.activations import catch_activations
from tests.support.backend_metal import tiny_models


def float64_swiglu(gate: mx.array, up: mx.array) -> npt.NDArray[np.float64]:
    g, u = np.array(gate, np.float64), np.array(up, np.float64)
    with np.errstate(over="ignore"):
        return g / (1 + np.exp(-g)) * u


@pytest.mark.parametrize("shape", [(1,), (3, 5), (7, 1, 2303), (40, 1, 256), (0, 4)])
def test_swiglu_against_float64(shape: tuple[int, ...]) -> None:
    gate, up = (mx.random.normal(shape, key=mx.random.key(seed)) * 6 for seed in range(2))
    expected = float64_swiglu(gate, up)
    error = np.array(native.swiglu(gate, up)) - expected
    assert error.shape == shape
    assert np.all(np.abs(error) <= 1e-6 * np.abs(expected) + 1e-30)


def test_extremes() -> None:
    gate = mx.array([-mx.inf, -1e4, -100.0, -0.0, 0.0, 100.0, 1e4, mx.inf, mx.nan])
    out = np.array(native.swiglu(gate, mx.ones(9)))
    assert np.all(np.abs(out[1:5]) < 1e-30)
    assert out[5:8].tolist() == [100.0, 1e4, np.inf]
    assert np.isnan(out[8])


@pytest.mark.parametrize("shape", [(1,), (3, 5), (7, 1, 2303), (0, 4)])
def test_exponentials_against_float64(shape: tuple[int, ...]) -> None:
    x = -mx.abs(mx.random.normal(shape, key=mx.random.key(0)) * 20)
    expected = np.exp(np.array(x, np.float64))
    got = np.array(native.exponential(x))
    assert got.shape == shape
    np.testing.assert_allclose(got, expected, rtol=3e-7, atol=2e-38)


def test_exponentials_of_parts_and_at_the_extremes() -> None:
    whole = mx.random.normal((6, 40), key=mx.random.key(0))
    before = np.array(whole)
    part = native.exponential(whole[:, 3:22])
    assert np.array_equal(np.array(part), np.array(native.exponential(whole))[:, 3:22])
    assert np.array_equal(np.array(whole), before)
    extremes = np.array(native.exponential(mx.array([-mx.inf, -1e4, 0.0, 1e4, mx.inf, mx.nan])))
    assert extremes[:5].tolist() == [0.0, 0.0, 1.0, np.inf, np.inf]
    assert np.isnan(extremes[5])
    with pytest.raises(ValueError, match="x must be float32"):
        native.exponential(mx.ones((2,), mx.float16))


def test_strided_inputs_and_an_input_that_lives_on() -> None:
    both = mx.random.normal((6, 40), key=mx.random.key(0))
    gate, up = mx.split(both, 2, axis=-1)
    before = np.array(gate)
    out = native.swiglu(gate, up)
    np.testing.assert_allclose(np.array(out), float64_swiglu(gate, up), rtol=1e-5, atol=1e-7)
    assert np.array_equal(np.array(gate), before)


def test_an_element_does_not_depend_on_its_place() -> None:
    gate = mx.random.normal((999,), key=mx.random.key(0))
    whole = np.array(native.swiglu(gate, gate))
    for first, last in ((0, 1), (1, 17), (500, 998), (983, 999)):
        part = native.swiglu(gate[first:last], gate[first:last])
        assert np.array_equal(np.array(part), whole[first:last])


def test_other_shapes_and_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        native.swiglu(mx.ones((2, 3)), mx.ones((3, 2)))
    with pytest.raises(ValueError, match="float32"):
        native.swiglu(mx.ones((2,), mx.float16), mx.ones((2,), mx.float16))


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_the_seam_is_used_within_its_context_only(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = tiny_models.build(family)
    catch_activations(model)
    calls = []

    def counted(gate: mx.array, x: mx.array) -> mx.array:
        calls.append(gate.shape)
        return swiglu(gate, x)

    monkeypatch.setattr(activations.native, "swiglu", counted)
    tokens = mx.array([[1, 2, 3]])
    expected = np.array(model(tokens))
    assert not calls
    with native_layers():
        assert np.array_equal(np.array(model(tokens)), expected)
    assert calls
    calls.clear()
    model(tokens)
    assert not calls
