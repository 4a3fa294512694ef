"""The draw as a graph of MLX's own operations, for devices without a kernel that is right."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal.engine.sampling.batch import SamplingBatch
from backend_metal.engine.sampling.largest import argmax
from backend_metal.engine.sampling.masking import leave_allowed
from backend_metal.engine.sampling.noise import gumbel, uniform_noise
from backend_metal.engine.sampling.truncation import (
    keep_sorted,
    keep_unsorted,
    probability_weights,
    top_p_targets,
    top_tokens,
)

NUM_CANDIDATES = 128
"""A top_k up to this is drawn from a short sorted list instead of the whole vocabulary."""

Ints = npt.NDArray[np.int32]


def draw_by_graph(logits: mx.array, batch: SamplingBatch) -> mx.array:
    """int32 ``[rows]``. ``logits`` is ``[rows, vocab_size]`` of any float."""
    if _takes_largest(batch):
        return argmax(logits)
    logits = logits.astype(mx.float32)
    if batch.masks is not None:
        logits = leave_allowed(logits, batch.masks)
    logits = _add_biases(_penalise(logits, batch), batch)
    groups = _groups(batch)
    if len(groups) == 1:
        [(draw, _)] = groups
        return draw(logits, *_columns(batch.options, batch.vocab_size))
    token_ids = mx.zeros((batch.num_rows,), mx.int32)
    for draw, members in groups:
        rows = mx.array(members)
        drawn = draw(logits[rows], *_columns(batch.options[members], batch.vocab_size))
        token_ids = mx.put_along_axis(token_ids, rows, drawn, axis=0)
    return token_ids


def _takes_largest(batch: SamplingBatch) -> bool:
    """Whether each row's token is that of the model's own largest logit."""
    return (
        batch.masks is None
        and batch.counts is None
        and not len(batch.biases.token_ids)
        and not batch.draws_by_chance
    )


Column = mx.array | None
"""``[rows, 1]``; None where no row has that stage."""
GroupDraw = Callable[[mx.array, mx.array, mx.array, Column, Column, Column], mx.array]
"""Of logits, keys, temperature, log_min_p, top_k and top_p."""


def _groups(batch: SamplingBatch) -> list[tuple[GroupDraw, Ints]]:
    """Rows that are drawn the same way. A row's group follows from its own options, so that its
    draw is the same in any batch."""
    options, size = batch.options, batch.vocab_size
    greedy = options["temperature"] == 0.0
    candidates = ~greedy & (options["top_k"] <= NUM_CANDIDATES) & (options["top_k"] < size)
    truncated = (options["top_p"] < 1.0) | (options["top_k"] < size)
    kinds: list[tuple[GroupDraw, npt.NDArray[np.bool_]]] = [
        (_draw_greedy, greedy),
        (_draw_from_candidates, candidates),
        (_draw_truncated, truncated & ~candidates & ~greedy),
        (_draw_plain, ~truncated & ~greedy),
    ]
    return [(draw, np.flatnonzero(kind).astype(np.int32)) for draw, kind in kinds if kind.any()]


def _columns(
    options: npt.NDArray[np.void], vocab_size: int
) -> tuple[mx.array, mx.array, Column, Column, Column]:
    def column(name: str) -> mx.array:
        return mx.array(np.ascontiguousarray(options[name])[:, None])

    return (
        mx.array(np.ascontiguousarray(options["key"])),
        column("temperature"),
        column("log_min_p") if (options["log_min_p"] > -np.inf).any() else None,
        column("top_k") if (options["top_k"] < vocab_size).any() else None,
        column("top_p") if (options["top_p"] < 1.0).any() else None,
    )


def _penalise(logits: mx.array, batch: SamplingBatch) -> mx.array:
    if batch.counts is None:
        return logits
    options = batch.options
    penalised = options["counts_row"] >= 0
    neutral = {"repetition": 1.0, "presence": 0.0, "frequency": 0.0}
    columns = [
        mx.array(np.where(penalised, options[name], np.float32(off))[:, None])
        for name, off in neutral.items()
    ]
    counts = batch.counts[mx.array(np.maximum(options["counts_row"], 0))]
    return _penalised(logits, counts, *columns)


@mx.compile
def _penalised(
    logits: mx.array,
    counts: mx.array,
    repetition: mx.array,
    presence: mx.array,
    frequency: mx.array,
) -> mx.array:
    repeated = mx.where(logits > 0.0, logits / repetition, logits * repetition)
    times = counts >> 1
    penalty = mx.where(times > 0, presence, 0.0) + times.astype(mx.float32) * frequency
    return mx.where(counts != 0, repeated, logits) - penalty


def _add_biases(logits: mx.array, batch: SamplingBatch) -> mx.array:
    """Written only to the elements they concern."""
    if not len(batch.biases.token_ids):
        return logits
    options = batch.options
    rows = np.repeat(np.arange(batch.num_rows), options["last_bias"] - options["first_bias"])
    where = mx.array((rows * batch.vocab_size + batch.biases.token_ids).astype(np.int32))
    flat = logits.reshape(-1)
    flat = mx.put_along_axis(flat, where, flat[where] + mx.array(batch.biases.values), axis=0)
    return flat.reshape(logits.shape)


def _draw_greedy(
    logits: mx.array,
    keys: mx.array,
    temperature: mx.array,
    log_min_p: Column,
    top_k: Column,
    top_p: Column,
) -> mx.array:
    return argmax(logits)


@mx.compile
def _draw_plain(
    logits: mx.array,
    keys: mx.array,
    temperature: mx.array,
    log_min_p: Column,
    top_k: Column,
    top_p: Column,
) -> mx.array:
    z = _scale(logits, mx.max(logits, axis=-1, keepdims=True), temperature, log_min_p)
    return _best(z, uniform_noise(keys, z.shape[-1]))


@mx.compile
def _draw_from_candidates(
    logits: mx.array,
    keys: mx.array,
    temperature: mx.array,
    log_min_p: Column,
    top_k: Column,
    top_p: Column,
) -> mx.array:
    # Always the same number of candidates: the width of a row must not depend on the batch.
    ids = top_tokens(logits, min(NUM_CANDIDATES, logits.shape[-1]))
    values = mx.take_along_axis(logits, ids, axis=-1)
    z = _scale(values, values[:, :1], temperature, log_min_p)
    if top_k is not None:
        z = _mask(z, mx.arange(z.shape[-1]) < top_k)
    if top_p is not None:
        weights = probability_weights(z)
        z = _mask(z, keep_sorted(weights, top_p_targets(weights, top_p)))
    # Of all tokens, in one operation of the device; that of some would take a dozen.
    noise = uniform_noise(keys, logits.shape[-1])
    best = _best(z, mx.take_along_axis(noise, ids, axis=-1))
    return mx.take_along_axis(ids, best[:, None], axis=-1)[:, 0]


@mx.compile
def _draw_truncated(
    logits: mx.array,
    keys: mx.array,
    temperature: mx.array,
    log_min_p: Column,
    top_k: Column,
    top_p: Column,
) -> mx.array:
    z = _scale(logits, mx.max(logits, axis=-1, keepdims=True), temperature, log_min_p)
    if top_k is not None:
        ones = mx.ones(z.shape, mx.uint32)
        z = _mask(z, keep_unsorted(z, ones, top_k.astype(mx.uint32)))
    if top_p is not None:
        weights = probability_weights(z)
        z = _mask(z, keep_unsorted(z, weights, top_p_targets(weights, top_p)))
    return _best(z, uniform_noise(keys, z.shape[-1]))


def _best(z: mx.array, uniform: mx.array) -> mx.array:
    return argmax(z + gumbel(uniform))


def _scale(
    values: mx.array, largest: mx.array, temperature: mx.array, log_min_p: Column
) -> mx.array:
    """Temperature and min_p; the largest becomes 0, so that no temperature overflows."""
    z = (values - largest) / temperature
    return z if log_min_p is None else _mask(z, z >= log_min_p)


def _mask(z: mx.array, keep: mx.array) -> mx.array:
    return mx.where(keep, z, -mx.inf)
