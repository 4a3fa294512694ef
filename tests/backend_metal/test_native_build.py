"""What the extension was built for, and the arithmetic its kernels are made of."""

from __future__ import annotations

import runpy
import sys

import numpy as np
import pytest

import backend_metal
from backend_metal import _native, native

INSTRUCTION_SETS = ["baseline", "avx2", "avx512"]


def test_it_was_built_for_this_mlx() -> None:
    native.check_build(
        _native.MLX_VERSION, _native.NANOBIND_ABI_TAG, knows_mlx_arrays=_native.knows_mlx_arrays()
    )


def test_another_mlx_is_named() -> None:
    with pytest.raises(ImportError, match=r"built for MLX 0\.1\.2, and this is MLX .*make native"):
        native.check_build("0.1.2", "tag", knows_mlx_arrays=True)


def test_another_nanobind_is_named() -> None:
    with pytest.raises(ImportError, match="built with the nanobind ABI 'tag', which MLX"):
        native.check_build(_native.MLX_VERSION, "tag", knows_mlx_arrays=False)


def test_what_is_not_built_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "backend_metal._native", None)
    monkeypatch.delattr(backend_metal, "_native", raising=False)
    with pytest.raises(ImportError, match=r"_native is not built, or not for MLX .*`make native`"):
        runpy.run_path(native.__file__)


def ulps(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return np.abs(actual - expected) / np.spacing(np.abs(expected).astype(np.float32))


def evaluate(function: str, instruction_set: str, x: np.ndarray) -> np.ndarray:
    try:
        values = getattr(_native.testing, function)(instruction_set, x.tolist())
    except ValueError:
        pytest.skip(f"this machine has no {instruction_set}")
    return np.array(values)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_exp(instruction_set: str) -> None:
    x = np.random.default_rng(0).uniform(-87, 88.5, 20_000).astype(np.float32)
    x = np.concatenate([x, np.linspace(-1, 0, 5000, dtype=np.float32)])
    actual = evaluate("exp", instruction_set, x)
    assert ulps(actual, np.exp(x.astype(np.float64))).max() <= 2
    edges = np.array([0.0, -0.0, -np.inf, -1e30, -104.0, 90.0, np.inf, np.nan], np.float32)
    want = [1.0, 1.0, 0.0, 0.0, 0.0, np.inf, np.inf, np.nan]
    np.testing.assert_array_equal(evaluate("exp", instruction_set, edges), want)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_tanh(instruction_set: str) -> None:
    x = np.random.default_rng(1).uniform(-12, 12, 20_000)
    x = np.concatenate([x, 10.0 ** np.linspace(-30, 1, 5000)]).astype(np.float32)
    actual = evaluate("tanh", instruction_set, x)
    assert ulps(actual, np.tanh(x.astype(np.float64))).max() <= 3
    edges = np.array([0.0, 100.0, -100.0, np.inf, -np.inf], np.float32)
    np.testing.assert_array_equal(evaluate("tanh", instruction_set, edges), [0, 1, -1, 1, -1])
