from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from backend_metal import native
from backend_metal.devices.cpu import float_rows
from backend_metal.devices.cpu.native_scope import native_layers
from tests.support.backend_metal import tiny_models


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 64), (70, 768), (2, 3, 129), (0, 8)])
def test_rms_norm_against_float64(shape: tuple[int, ...]) -> None:
    x, weight = normal(*shape) * 30, normal(shape[-1], seed=1)
    wide = np.array(x, np.float64)
    root = np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + 1e-5)
    expected = wide / root * np.array(weight, np.float64)
    out = native.rms_norm(x, weight, 1e-5)
    np.testing.assert_allclose(np.array(out), expected, rtol=2e-6, atol=1e-30)


def test_a_row_of_zeros_stays_zero() -> None:
    assert not np.array(native.rms_norm(mx.zeros((2, 40)), mx.ones((40,)), 1e-6)).any()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    x, weight = normal(300, 100), normal(100, seed=1)
    whole = np.array(native.rms_norm(x, weight, 1e-6))
    for first, last in ((0, 1), (7, 9), (120, 299)):
        part = native.rms_norm(x[first:last], weight, 1e-6)
        assert np.array_equal(np.array(part), whole[first:last])


def test_inputs_of_any_strides() -> None:
    """Slices, transposed ones and a scalar repeated, without a copy in the graph."""
    wide = normal(40, 6, 96)
    views = (
        wide[:, 2:5, ::2],
        wide[:, 1:2, 7:71],
        wide[:, 1:4],
        wide[:, ::2],
        wide[::3, None, 2:, None],
        wide[5:6, 2:4],
        wide.transpose(2, 0, 1),
        wide[:, 0],
        wide[7, 3, 4:],
    )
    for x in views:
        weight = mx.broadcast_to(mx.array(2.5), (x.shape[-1],))
        expected = native.rms_norm(mx.array(np.array(x)), mx.array(np.array(weight)), 1e-6)
        assert np.array_equal(np.array(native.rms_norm(x, weight, 1e-6)), np.array(expected))
        packed = mx.array(np.array(x))
        assert np.array_equal(
            np.array(native.swiglu(x, x)), np.array(native.swiglu(packed, packed))
        )
    positions = mx.arange(80)[::2]
    for heads in (wide[:, :, None, :64], wide[:, 2:4, None], wide[:, None, 3:].swapaxes(1, 2)):
        expected = rotated(mx.array(np.array(heads)), mx.array(np.array(positions)), 64, 1e4, 1.0)
        assert np.array_equal(np.array(rotated(heads, positions, 64, 1e4, 1.0)), np.array(expected))


@pytest.mark.parametrize("cut", [[60, 90], [30, 90]])
def test_two_inputs_of_different_strides(cut: list[int]) -> None:
    """Parts of one array, of which each has runs of its own, and a contiguous one."""
    wide = normal(30, 5, 120)
    parts = mx.split(wide, cut, axis=-1)
    views = [part for part in parts if part.shape[-1] == 30]
    views += [
        wide.reshape(-1)[: 30 * 5 * 30].reshape(30, 5, 30),
        wide[:, :, :60:2],
        wide[0, :, :30],
    ]
    for gate in views:
        for up in views:
            if gate.shape != up.shape:
                continue
            expected = native.swiglu(mx.array(np.array(gate)), mx.array(np.array(up)))
            assert np.array_equal(np.array(native.swiglu(gate, up)), np.array(expected))


def rotated(x: mx.array, positions: mx.array, dims: int, base: float, scale: float) -> mx.array:
    frequencies = float_rows.rope_frequencies(dims // 2, base)
    return native.rope(x, positions, frequencies, scale)


@pytest.mark.parametrize("dims", [6, 40, 64])
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("tokens", [1, 33])
def test_rope_against_mlx(dims: int, scale: float, tokens: int) -> None:
    x = normal(tokens, 3, 1, 64)
    positions = mx.random.randint(0, 100_000, (tokens,), key=mx.random.key(2)).astype(mx.int32)
    before = np.array(x)
    expected = mx.fast.rope(x, dims, traditional=False, base=1e6, scale=scale, offset=positions)
    out = rotated(x, positions, dims, 1e6, scale)
    np.testing.assert_allclose(np.array(out), np.array(expected), rtol=0, atol=4e-6)
    assert np.array_equal(np.array(x), before)


def test_rope_of_an_input_that_nobody_else_holds() -> None:
    positions = mx.arange(9)
    expected = np.array(rotated(normal(9, 2, 1, 80), positions, 64, 1e4, 1.0))
    doubled = rotated((normal(9, 1, 2, 80) * 1.0).transpose(0, 2, 1, 3), positions, 64, 1e4, 1.0)
    assert doubled.shape == (9, 2, 1, 80)
    assert np.array_equal(np.array(doubled), expected)


def test_other_shapes_and_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match="weight"):
        native.rms_norm(mx.ones((2, 8)), mx.ones((4,)), 1e-6)
    with pytest.raises(ValueError, match="x must be float32"):
        native.rms_norm(mx.ones((2, 8), mx.float16), mx.ones((8,)), 1e-6)
    frequencies = mx.ones((4,))
    with pytest.raises(ValueError, match="num_tokens, num_heads, 1, head_dim"):
        native.rope(mx.ones((2, 1, 2, 8)), mx.arange(2), frequencies, 1.0)
    with pytest.raises(ValueError, match="positions"):
        native.rope(mx.ones((2, 1, 1, 8)), mx.arange(3), frequencies, 1.0)
    with pytest.raises(ValueError, match="frequencies"):
        native.rope(mx.ones((2, 1, 1, 6)), mx.arange(2), frequencies, 1.0)


def test_layers_are_native_within_the_scope_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = tiny_models.build("qwen3")
    float_rows.prepare_float_rows(model)
    parameters = dict(tree_flatten(model.parameters()))
    assert not any("frequencies" in name for name in parameters)
    calls = []
    for name in ("rms_norm", "rope"):
        original = getattr(native, name)

        def counted(*args, name=name, original=original):  # type: ignore[no-untyped-def]
            calls.append(name)
            return original(*args)

        monkeypatch.setattr(native, name, counted)
    tokens = mx.array([[1], [2], [3]])
    expected = np.array(model(tokens))
    assert not calls
    with native_layers():
        np.testing.assert_allclose(np.array(model(tokens)), expected, rtol=1e-4, atol=1e-5)
    assert "rms_norm" in calls
    # Without a cache the offset is a number, which MLX takes as it is.
    assert "rope" not in calls


@pytest.mark.parametrize("positions", [[0, 0, 0], [5, 900, 31]])
def test_a_rope_layer_takes_packed_tokens(positions: list[int]) -> None:
    layer = nn.Sequential(nn.RoPE(32, base=10_000.0, scale=0.5))
    float_rows.prepare_float_rows(layer)
    x, offset = normal(3, 2, 1, 48), mx.array(positions, mx.int32)
    expected = np.array(layer.layers[0](x, offset))
    with native_layers():
        out = np.array(layer.layers[0](x, offset))
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-6)
