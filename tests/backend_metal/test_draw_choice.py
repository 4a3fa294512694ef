"""Who draws: a device's kernel where it is right, and MLX's own operations where it is not."""

from __future__ import annotations

import logging

import mlx.core as mx
import pytest

from backend_metal.device import CPU
from backend_metal.engine.sampling import choice
from backend_metal.engine.sampling.batch import SamplingBatch
from backend_metal.engine.sampling.choice import choose_draw
from backend_metal.engine.sampling.graph import draw_by_graph
from backend_metal.engine.sampling.kernel import Draw, KernelDraw


def off_by_one(logits: mx.array, batch: SamplingBatch) -> mx.array:
    return draw_by_graph(logits, batch) + 1


def one_row_wrong(logits: mx.array, batch: SamplingBatch) -> mx.array:
    return draw_by_graph(logits, batch) + (mx.arange(batch.num_rows) == 5).astype(mx.int32)


def failing(logits: mx.array, batch: SamplingBatch) -> mx.array:
    raise ValueError("no such kernel")


@pytest.mark.parametrize("vocab_size", [1, 300, 50_000])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_the_kernel_of_this_device_passes(vocab_size: int, dtype: mx.Dtype) -> None:
    assert isinstance(choose_draw(vocab_size, dtype, CPU), KernelDraw)


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (off_by_one, "temperature=0.0"),
        (one_row_wrong, "top_k=20"),
        (failing, "no such kernel"),
    ],
)
def test_one_that_is_wrong_or_fails_serves_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kernel: Draw, told: str
) -> None:
    monkeypatch.setattr(choice, "own_kernel", lambda device: kernel)
    with caplog.at_level(logging.ERROR):
        assert choose_draw(300, mx.float32, CPU) is draw_by_graph
    (record,) = caplog.records
    assert "plain MLX draws" in record.message
    assert told in record.message


def test_where_there_is_none_the_graph_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "own_kernel", lambda device: None)
    assert choose_draw(300, mx.float32, CPU) is draw_by_graph
