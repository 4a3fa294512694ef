"""The benchmark of products, on the CPU: all compute the same."""

from __future__ import annotations

import sys

import mlx.core as mx
import numpy as np
import pytest

from ops.bench.products import __main__ as products

pytestmark = pytest.mark.serve


def test_contenders_compute_the_same() -> None:
    quantized, unpacking, floats = products.contenders(48, 128, 8, mx.float32).values()
    x = mx.random.normal((20, 128), key=mx.random.key(0))
    expected = np.array(quantized(x))
    np.testing.assert_allclose(np.array(unpacking(x)), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.array(floats(x)), expected, rtol=0, atol=0.05)


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--columns 64 --depth 128 --rows 1 20 --budget 0"
    monkeypatch.setattr(sys, "argv", ["products", *arguments.split()])
    products.main()
    first, _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert "64 columns of depth 128" in first
    assert head.startswith("| rows | 4 bits, ms | TFLOP/s | unpacked before, ms |")
    assert [row.split("|")[1].strip() for row in rows] == ["1", "20"]
    assert all(float(cell) > 0 for row in rows for cell in row.split("|")[2:-1:2])
