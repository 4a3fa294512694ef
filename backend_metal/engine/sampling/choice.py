"""How an engine draws: by the device's own kernel, if that passes the check at start."""

from __future__ import annotations

import logging

import mlx.core as mx
import numpy as np

from backend_metal.engine.sampling.batch import (
    Biases,
    RowOptions,
    SamplingBatch,
    SamplingRow,
    build_sampling_batch,
)
from backend_metal.engine.sampling.graph import draw_by_graph
from backend_metal.engine.sampling.kernel import Draw, own_kernel
from backend_metal.engine.sampling.masking import BITS, Masks
from deployments.backend import SamplingParams

logger = logging.getLogger(__name__)

_CHECKED = (
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(top_k=20, top_p=0.9),
    SamplingParams(top_p=0.8, temperature=0.7),
    SamplingParams(min_p=0.1),
    SamplingParams(logit_bias={0: -100.0}),
)
"""Between them, and with masks for every other row, they go every way that kernels have but that of
penalties."""
SPREAD = 4.0
"""Standard deviation of the logits of the check."""


def choose_draw(vocab_size: int, dtype: mx.Dtype) -> Draw:
    """For logits of a model, on MLX's default device."""
    kernel = own_kernel()
    if kernel is None:
        return draw_by_graph
    try:
        wrong = _wrong_draw(kernel, vocab_size, dtype)
    except RuntimeError as error:
        wrong = str(error)
    if wrong is None:
        return kernel
    logger.error("The kernels that draw tokens are wrong here, so plain MLX draws: %s", wrong)
    return draw_by_graph


def _wrong_draw(kernel: Draw, vocab_size: int, dtype: mx.Dtype) -> str | None:
    """The first token that the graph does not draw, too; None: there is none."""
    batch = _checked_batch(vocab_size)
    random = np.random.default_rng(vocab_size)
    logits = random.normal(0.0, SPREAD, (batch.num_rows, vocab_size)).astype(np.float32)
    array = mx.array(logits).astype(dtype)
    drawn, expected = (np.array(draw(array, batch)) for draw in (kernel, draw_by_graph))
    for row in np.flatnonzero(drawn != expected):
        return f"token {drawn[row]} in place of {expected[row]} for {_CHECKED[row // 2]}"
    return None


def _checked_batch(vocab_size: int) -> SamplingBatch:
    """Two rows of each kind, the second of them with a mask."""
    rows = [
        SamplingRow(params, seed, Biases.of(params.logit_bias) if params.logit_bias else None)
        for seed, params in enumerate(params for params in _CHECKED for _ in range(2))
    ]
    random = np.random.default_rng(0)
    size = (len(rows) // 2, -(-vocab_size // BITS))
    words = random.integers(-(2**31), 2**31, size, np.int32)
    # Some token may come, whatever the vocabulary.
    words[:, 0] |= 1
    masks = Masks(np.arange(1, len(rows), 2, dtype=np.int32), words)
    return build_sampling_batch(RowOptions(rows, vocab_size), np.arange(len(rows)), masks)
