"""What is particular to the CPU's kernel of a draw: instruction sets, threads, ties, bad logits.

``test_sampler.py`` holds it, and the graph of the same draw, to the float64 oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from backend_metal import native
from backend_metal.device import device_on
from backend_metal.engine.sampling.batch import (
    OPTIONS,
    Biases,
    RowOptions,
    SamplingBatch,
    SamplingRow,
    build_sampling_batch,
)
from backend_metal.engine.sampling.graph import draw_by_graph
from backend_metal.engine.sampling.kernel import own_kernel
from deployments.backend import SamplingParams

PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=2.0, top_p=0.999),
    SamplingParams(top_k=40, top_p=0.8),
    SamplingParams(top_k=3000),
    SamplingParams(min_p=0.02),
    SamplingParams(min_p=0.001, top_p=0.7, temperature=1.9),
    SamplingParams(logit_bias={5: 30.0, 17: -100.0}),
]


@pytest.fixture(params=["baseline", "avx2", "avx512"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    before = native.instruction_set()
    try:
        native.set_instruction_set(request.param)
    except ValueError:
        pytest.skip(f"this machine has no {request.param}")
    yield
    native.set_instruction_set(before)


def make_logits(rows: int, vocab_size: int, spread: float = 3.0) -> mx.array:
    logits = np.random.default_rng(vocab_size).normal(0, spread, (rows, vocab_size))
    return mx.array(logits.astype(np.float32))


def batch_of(rows: int, vocab_size: int, params: list[SamplingParams] = PARAMS) -> SamplingBatch:
    """Rows of different positions, whose parameters take turns."""
    made = []
    for row in range(rows):
        one = params[row % len(params)]
        biases = Biases.of(one.logit_bias) if one.logit_bias else None
        made.append(SamplingRow(one, seed=7, biases=biases))
    return build_sampling_batch(RowOptions(made, vocab_size), np.arange(rows))


def draw(logits: mx.array, batch: SamplingBatch) -> list[int]:
    kernel = own_kernel(device_on(mx.default_device()))
    assert kernel is not None
    return list(kernel(logits, batch).tolist())


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("vocab_size", [1, 2, 15, 63, 64, 65, 1000, 4097, 33_000])
def test_the_kernel_draws_what_the_graph_draws(vocab_size: int) -> None:
    rows = 4 * len(PARAMS)
    logits, batch = make_logits(rows, vocab_size), batch_of(rows, vocab_size)
    assert draw(logits, batch) == draw_by_graph(logits, batch).tolist()


@pytest.mark.parametrize("spread", [0.0, 0.5, 20.0])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.999])
def test_nuclei_of_any_size(spread: float, top_p: float) -> None:
    logits = make_logits(6, 20_000, spread)
    batch = batch_of(6, 20_000, [SamplingParams(top_p=top_p)])
    assert draw(logits, batch) == draw_by_graph(logits, batch).tolist()


def test_threads_and_neighbours_change_nothing() -> None:
    rows, vocab_size = 2 * len(PARAMS), 5000
    logits, batch = make_logits(rows, vocab_size), batch_of(rows, vocab_size)
    together = draw(logits, batch)
    threads = native.num_threads()
    try:
        for count in (1, 3):
            native.set_num_threads(count)
            assert draw(logits, batch) == together
    finally:
        native.set_num_threads(threads)
    for row in range(rows):
        alone = replace(batch, num_rows=1, options=batch.options[row : row + 1])
        assert draw(logits[row : row + 1], alone) == together[row : row + 1]


def test_logits_of_any_strides() -> None:
    wide = make_logits(6, 400)
    for logits in (wide[::2, ::3], wide[:3, 7:141], wide[:3, ::-1]):
        batch = batch_of(3, logits.shape[1])
        assert draw(logits, batch) == draw(mx.array(np.array(logits)), batch)


def test_other_shapes_and_dtypes_are_refused() -> None:
    options = mx.zeros((2, len(OPTIONS.names or ()) + 1), mx.uint32)
    ids, values = mx.zeros(0, mx.int32), mx.zeros(0)
    logits, masks, counts = mx.zeros((2, 9)), mx.zeros((0, 1), mx.int32), mx.zeros((0, 9), mx.int32)
    right = (logits, options, masks, counts, ids, values)
    native.draw_tokens(*right, cuts=False)
    for name, place, wrong in (
        ("logits", 0, logits[0]),
        ("logits", 0, mx.zeros((2, 0))),
        ("logits", 0, logits.astype(mx.int32)),
        ("options", 1, options[:1]),
        ("masks", 2, masks[0:0, 0]),
        ("masks", 2, mx.zeros((1, 0), mx.int32)),
        ("masks", 2, masks.astype(mx.uint32)),
        ("counts", 3, mx.zeros((3, 8), mx.int32)),
        ("bias_ids", 4, values),
        ("biases", 5, mx.zeros(1)),
    ):
        arguments = [*right[:place], wrong, *right[place + 1 :]]
        with pytest.raises(ValueError, match=f"^{name} "):
            native.draw_tokens(*arguments, cuts=False)
    strided = mx.zeros((4, options.shape[1]), mx.uint32)[::2]
    with pytest.raises(ValueError, match="must be contiguous"):
        mx.eval(native.draw_tokens(logits, strided, *right[2:], cuts=False))
    halves = native.draw_tokens(logits.astype(mx.float16), *right[1:], cuts=False)
    with pytest.raises(ValueError, match=r"^logits must be float32"):
        mx.eval(halves)
