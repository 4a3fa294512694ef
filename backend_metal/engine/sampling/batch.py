"""What the sampler needs to know about the rows of one step, as NumPy arrays.

Each row belongs to one group by its own parameters, never by its company: that is what makes a
row's draw independent of the batch. Stages that no row asks for are None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from backend_metal.engine.sampling.noise import draw_keys
from deployments.backend import SamplingParams

NUM_CANDIDATES = 128
"""A top_k up to this is drawn from a short sorted list instead of the whole vocabulary."""

_GREEDY_BELOW = 1e-5

GroupKind = Literal["greedy", "plain", "candidates", "truncated"]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class SamplingRow:
    """One row of logits: draw the token at ``position`` of a sequence."""

    params: SamplingParams
    seed: int
    """Signed 64-bit."""
    position: int
    token_ids: npt.NDArray[np.int32]
    """Prompt and output so far."""
    num_prompt_tokens: int


@dataclass(frozen=True)
class Entries:
    """One value for each of some elements of the logits."""

    flat_indices: Ints
    """``row * vocab_size + token_id``"""
    values: Floats


@dataclass(frozen=True)
class SamplingGroup:
    """Rows that are drawn the same way; columns are ``[rows, 1]`` float32.

    ``greedy``: argmax. ``plain``: temperature and min_p. ``candidates``: a small top_k, whatever
    else. ``truncated``: top_p, or a large top_k, over the whole vocabulary.
    """

    kind: GroupKind
    rows: Ints
    keys: npt.NDArray[np.uint32]
    """``[rows, 2]``"""
    temperature: Floats
    log_min_p: Floats | None
    top_k: Floats | None
    top_p: Floats | None


@dataclass(frozen=True)
class SamplingBatch:
    num_rows: int
    vocab_size: int
    groups: tuple[SamplingGroup, ...]
    masks: npt.NDArray[np.int32] | None
    """``[num_rows, ceil(vocab_size / 32)]``, a bit for each token that may come, from the lowest;
    None: every token may."""
    repetition: Entries | None
    """Penalties of the tokens seen; an element may come more than once."""
    additive: Entries | None
    """Presence and frequency penalties and biases, summed; an element comes once."""
    num_top_logprobs: int | None
    """The most any row asks for; None: no row asks for logprobs."""


def build_sampling_batch(
    rows: Sequence[SamplingRow], vocab_size: int, masks: npt.NDArray[np.int32] | None = None
) -> SamplingBatch:
    """Vectorised over tokens; token ids outside the vocabulary have no effect."""
    kinds: dict[GroupKind, list[int]] = {}
    for index, row in enumerate(rows):
        kinds.setdefault(_kind(row.params, vocab_size), []).append(index)
    asked = [row.params.logprobs for row in rows if row.params.logprobs is not None]
    return SamplingBatch(
        num_rows=len(rows),
        vocab_size=vocab_size,
        groups=tuple(_group(kind, rows, indices, vocab_size) for kind, indices in kinds.items()),
        masks=masks,
        repetition=_repetition(rows, vocab_size),
        additive=_additive(rows, vocab_size),
        num_top_logprobs=min(max(asked), vocab_size) if asked else None,
    )


def _kind(params: SamplingParams, vocab_size: int) -> GroupKind:
    if params.temperature < _GREEDY_BELOW:
        return "greedy"
    if 0 < params.top_k <= NUM_CANDIDATES and params.top_k < vocab_size:
        return "candidates"
    if params.top_p < 1.0 or 0 < params.top_k < vocab_size:
        return "truncated"
    return "plain"


def _group(
    kind: GroupKind, rows: Sequence[SamplingRow], indices: list[int], vocab_size: int
) -> SamplingGroup:
    members = [rows[index] for index in indices]
    params = [row.params for row in members]
    min_p = _column([p.min_p for p in params])
    top_k = _column([p.top_k or vocab_size for p in params])
    top_p = _column([p.top_p for p in params])
    with np.errstate(divide="ignore"):
        log_min_p = np.log(min_p)
    return SamplingGroup(
        kind=kind,
        rows=np.array(indices, np.int32),
        keys=draw_keys(
            np.array([row.seed for row in members], np.int64),
            np.array([row.position for row in members], np.int64),
        ),
        temperature=_column([p.temperature for p in params]),
        log_min_p=log_min_p if (min_p > 0.0).any() else None,
        top_k=top_k if (top_k < vocab_size).any() else None,
        top_p=top_p if (top_p < 1.0).any() else None,
    )


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, np.float32)[:, None]


def _repetition(rows: Sequence[SamplingRow], vocab_size: int) -> Entries | None:
    chosen = [(i, row) for i, row in enumerate(rows) if row.params.repetition_penalty != 1.0]
    flat = _flat_indices([(i, row.token_ids) for i, row in chosen], vocab_size)
    if not len(flat):
        return None
    penalty_of_row = np.ones(len(rows), np.float32)
    for i, row in chosen:
        penalty_of_row[i] = row.params.repetition_penalty
    return Entries(flat.astype(np.int32), penalty_of_row[flat // vocab_size])


def _additive(rows: Sequence[SamplingRow], vocab_size: int) -> Entries | None:
    penalised = [
        (i, row)
        for i, row in enumerate(rows)
        if row.params.presence_penalty != 0.0 or row.params.frequency_penalty != 0.0
    ]
    biases = {
        i * vocab_size + token_id: bias
        for i, row in enumerate(rows)
        for token_id, bias in row.params.logit_bias.items()
        if 0 <= token_id < vocab_size
    }
    if not penalised and not biases:
        return None
    outputs = _flat_indices(
        [(i, row.token_ids[row.num_prompt_tokens :]) for i, row in penalised], vocab_size
    )
    seen, counts = np.unique(outputs, return_counts=True)
    presence, frequency = np.zeros((2, len(rows)))
    for i, row in penalised:
        presence[i], frequency[i] = row.params.presence_penalty, row.params.frequency_penalty
    penalties = -presence[seen // vocab_size] - frequency[seen // vocab_size] * counts

    flat = np.concatenate([seen, np.fromiter(biases, np.int64, len(biases))])
    values = np.concatenate([penalties, np.fromiter(biases.values(), float, len(biases))])
    if not len(flat):
        return None
    elements, where = np.unique(flat, return_inverse=True)
    sums = np.bincount(where, weights=values, minlength=len(elements))
    return Entries(elements.astype(np.int32), sums.astype(np.float32))


def _flat_indices(
    tokens_of_row: Sequence[tuple[int, Ints]], vocab_size: int
) -> npt.NDArray[np.int64]:
    """``row * vocab_size + token_id`` of every token inside the vocabulary, in order."""
    parts = [
        index * vocab_size + ids[(ids >= 0) & (ids < vocab_size)].astype(np.int64)
        for index, ids in tokens_of_row
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
