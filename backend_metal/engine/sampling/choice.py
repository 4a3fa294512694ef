"""How an engine draws: by the device's own kernel, if that passes the check at start."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal.devices.base import Device
from backend_metal.engine.sampling.batch import (
    Biases,
    RowOptions,
    SamplingBatch,
    SamplingRow,
    build_sampling_batch,
    penalises,
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
    SamplingParams(presence_penalty=1.5),
)
"""Two rows of each, the second with a mask; and then the first two without anything else."""
SPREAD = 4.0
"""Standard deviation of the logits of the check."""


def choose_draw(vocab_size: int, dtype: mx.Dtype, device: Device) -> Draw:
    """For logits of a model, on a device that is MLX's default one."""
    kernel = own_kernel(device)
    if kernel is None:
        return draw_by_graph
    started = time.perf_counter()
    try:
        wrong = _wrong_draw(kernel, vocab_size, dtype)
    except (RuntimeError, ValueError) as error:
        wrong = str(error)
        # A GPU's failure is raised once for each wait that meets it; nobody else is to meet it.
        with contextlib.suppress(RuntimeError):
            mx.synchronize()
    if wrong is None:
        took = time.perf_counter() - started
        logger.info("the kernels that draw tokens agree with plain MLX; checked in %.2f s", took)
        return kernel
    logger.error("The kernels that draw tokens are wrong here, so plain MLX draws: %s", wrong)
    return draw_by_graph


def _wrong_draw(kernel: Draw, vocab_size: int, dtype: mx.Dtype) -> str | None:
    """The first token that the graph does not draw, too; None: there is none."""
    for make in (_with_everything, _plain):
        params, drawn = _drawn(kernel, make, vocab_size, dtype)
        with _on_the_cpu():
            _, expected = _drawn(draw_by_graph, make, vocab_size, dtype)
        for row in np.flatnonzero(drawn != expected):
            return f"token {drawn[row]} in place of {expected[row]} for {params[row]}"
    return None


def _drawn(
    draw: Draw,
    make: Callable[[int], tuple[list[SamplingParams], SamplingBatch]],
    vocab_size: int,
    dtype: mx.Dtype,
) -> tuple[list[SamplingParams], npt.NDArray[np.int32]]:
    params, batch = make(vocab_size)
    shape = batch.num_rows, vocab_size
    logits = np.random.default_rng(vocab_size).normal(0.0, SPREAD, shape).astype(np.float32)
    return params, np.array(draw(mx.array(logits).astype(dtype), batch))


@contextlib.contextmanager
def _on_the_cpu() -> Iterator[None]:
    """Where MLX has all kernels, and makes none: on a GPU it may compile those of the graph for
    minutes, and on a CPU it needs a compiler. That it does is a setting of the process: whatever
    else builds graphs meanwhile gets the same values, by more kernels."""
    is_disabled = "MLX_DISABLE_COMPILE" in os.environ
    mx.disable_compile()
    try:
        with mx.stream(mx.cpu):
            yield
    finally:
        if not is_disabled:
            mx.enable_compile()


def _with_everything(vocab_size: int) -> tuple[list[SamplingParams], SamplingBatch]:
    params = [params for params in _CHECKED for _ in range(2)]
    random = np.random.default_rng(0)
    words = random.integers(-(2**31), 2**31, (len(_CHECKED), -(-vocab_size // BITS)), np.int32)
    # Some token may come, whatever the vocabulary.
    words[:, 0] |= 1
    masks = Masks(np.arange(1, len(params), 2, dtype=np.int32), words)
    counts = mx.array(random.integers(0, 4, (1, vocab_size)).astype(np.int32))
    counts_rows = np.array([0 if penalises(one) else -1 for one in params], np.int32)
    rows, positions = _rows(params, vocab_size)
    return params, build_sampling_batch(rows, positions, masks, counts, counts_rows)


def _plain(vocab_size: int) -> tuple[list[SamplingParams], SamplingBatch]:
    params = list(_CHECKED[:2])
    return params, build_sampling_batch(*_rows(params, vocab_size))


def _rows(
    params: list[SamplingParams], vocab_size: int
) -> tuple[RowOptions, npt.NDArray[np.int64]]:
    rows = [
        SamplingRow(one, seed, Biases.of(one.logit_bias) if one.logit_bias else None)
        for seed, one in enumerate(params)
    ]
    return RowOptions(rows, vocab_size), np.arange(len(params))
