"""The benchmark of draws, on the CPU: both contenders draw the same tokens."""

from __future__ import annotations

import sys

import mlx.core as mx
import numpy as np
import pytest

from backend_metal.device import device_on
from backend_metal.engine.sampling.graph import draw_by_graph
from backend_metal.engine.sampling.kernel import own_kernel
from ops.bench.draws import __main__ as draws

pytestmark = pytest.mark.serve

NUM_ROWS, VOCAB_SIZE = 3, 1000


@pytest.mark.parametrize("case", draws.CASES, ids=lambda case: case.name)
@pytest.mark.exhaustive
def test_contenders_draw_the_same(case: draws.Case) -> None:
    kernels = own_kernel(device_on(mx.default_device()))
    assert kernels is not None
    batch = draws.make_batch(case, NUM_ROWS, VOCAB_SIZE)
    logits = 4.0 * mx.random.normal((NUM_ROWS, VOCAB_SIZE), key=mx.random.key(1))
    drawn = np.array(kernels(logits, batch))
    np.testing.assert_array_equal(drawn, np.array(draw_by_graph(logits, batch)))
    likeliest = np.array(logits.argmax(axis=-1))
    if case.left_out == 0.99:
        assert (drawn != likeliest).any()
    elif case.params.temperature == 0.0 and case.left_out is None:
        np.testing.assert_array_equal(drawn, likeliest)


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--rows", "2", "--vocabulary", "100", "--budget", "0"]
    monkeypatch.setattr(sys, "argv", ["draws", *arguments])
    monkeypatch.setattr(draws, "CASES", draws.CASES[:2])
    draws.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(", 2 rows of 100 tokens")
    assert len(lines) == 4 + len(draws.CASES)
    for line in lines[4:]:
        assert all(float(cell) > 0 for cell in line.split("|")[2:-1])
