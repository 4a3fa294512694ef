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
from backend_metal.engine.sampling.batch import (
    Biases,
    RowOptions,
    SamplingBatch,
    SamplingRow,
    build_sampling_batch,
)
from backend_metal.engine.sampling.graph import draw_by_graph
from backend_metal.engine.sampling.sampler import sample
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
    return list(sample(logits, batch).token_ids.tolist())


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


def test_of_equal_logits_the_lowest_ids_are_kept() -> None:
    """As a half-precision model has many."""
    rows, vocab_size = 4000, 1000
    logits = np.zeros((rows, vocab_size), np.float32)
    logits[:, 700:] = 1.0
    weights = 300 * np.e + 700
    top_p = 0.8995 * 300 * np.e / weights
    logits = mx.array(logits)
    for params, kept in (
        (SamplingParams(top_p=top_p), range(700, 970)),
        (SamplingParams(top_k=200), range(700, 900)),
        (SamplingParams(top_k=330, temperature=2.0), [*range(30), *range(700, 1000)]),
        (SamplingParams(top_k=200, top_p=0.5), range(700, 800)),
    ):
        drawn = draw(logits, batch_of(rows, vocab_size, [params]))
        assert set(drawn) == set(kept)


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


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_end_in_some_token(bad: float) -> None:
    """A model may be broken; the process is not, and other rows draw what they drew."""
    rows, vocab_size = 3 * len(PARAMS), 700
    logits, batch = make_logits(rows, vocab_size), batch_of(rows, vocab_size)
    good = draw(logits, batch)
    broken = np.array(logits)
    broken[0] = bad
    broken[1, ::2] = bad
    broken[2:9, 5] = bad
    broken[9:18, 100:] = bad
    drawn = draw(mx.array(broken), batch)
    assert all(0 <= token < vocab_size for token in drawn)
    assert drawn[18:] == good[18:]


def test_other_shapes_and_dtypes_are_refused() -> None:
    options = mx.zeros((2, 12), mx.uint32)
    counts, ids, values = mx.zeros((0, 9), mx.int32), mx.zeros(0, mx.int32), mx.zeros(0)
    logits = mx.zeros((2, 9))
    native.draw_tokens(logits, options, counts, ids, values)
    for name, arguments in {
        "logits": (logits.astype(mx.float16), options, counts, ids, values),
        "logits and counts": (logits[0], options, counts, ids, values),
        "options": (logits, options[:1], counts, ids, values),
        "counts": (logits, options, mx.zeros((3, 8), mx.int32), ids, values),
        "bias_ids": (logits, options, counts, values, values),
        "biases": (logits, options, counts, ids, mx.zeros(1)),
    }.items():
        with pytest.raises(ValueError, match=f"^{name} "):
            native.draw_tokens(*arguments)
