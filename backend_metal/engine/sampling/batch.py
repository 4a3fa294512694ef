"""What the sampler needs to know about the rows of one step, as NumPy arrays.

A row's options are its own, never its company's: that is what makes a row's draw independent of the
batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal.engine.sampling.masking import Masks
from backend_metal.engine.sampling.noise import draw_keys
from deployments.backend import SamplingParams

_GREEDY_BELOW = 1e-5
_TOKEN_IDS = range(2**31)

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

OPTIONS = np.dtype(
    [
        ("key", np.uint32, 2),  # of the row's noise
        ("temperature", np.float32),  # 0: greedy
        ("log_min_p", np.float32),  # minus infinity: off
        ("top_p", np.float32),  # 1: off
        ("top_k", np.int32),  # the size of the vocabulary: off
        ("mask_row", np.int32),  # -1: every token may come
        ("counts_row", np.int32),  # -1: nothing is penalised
        ("repetition", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("first_bias", np.int32),
        ("last_bias", np.int32),
    ]
)
"""As ``DrawOptions`` in ``parameters.h`` has them."""


@dataclass(frozen=True)
class Biases:
    """What is added to logits of some tokens, each of which comes once, in ascending order."""

    token_ids: Ints
    values: Floats

    @classmethod
    def of(cls, logit_bias: Mapping[int, float]) -> Biases:
        """Those of tokens that there can be."""
        known = sorted((token, bias) for token, bias in logit_bias.items() if token in _TOKEN_IDS)
        return cls(
            np.array([token for token, _ in known], np.int32),
            np.array([bias for _, bias in known], np.float32),
        )


_NO_BIASES = Biases.of({})


@dataclass(frozen=True)
class SamplingRow:
    """How one sequence draws, whatever its next token is."""

    params: SamplingParams
    seed: int
    """Signed 64-bit."""
    biases: Biases | None = None


class RowOptions:
    """Of the sequences that draw, one a row: what stays as it is from step to step."""

    def __init__(self, rows: Sequence[SamplingRow], vocab_size: int) -> None:
        """Loops over rows, never over tokens; token ids outside the vocabulary have no effect."""
        asked = {
            i: row.params.logprobs for i, row in enumerate(rows) if row.params.logprobs is not None
        }
        self.rows = rows
        self.vocab_size = vocab_size
        self.seeds = np.array([row.seed for row in rows], np.int64)
        self.options = np.array([_options(row.params, vocab_size) for row in rows], OPTIONS)
        self.biases = _gather_biases(rows, self.options, vocab_size)
        self.logprob_rows = np.fromiter(asked, np.int32, len(asked))
        self.num_top_logprobs = min(max(asked.values(), default=0), vocab_size)
        self.draws_by_chance = bool(self.options["temperature"].any())
        self.cuts = bool(_cut(self.options, vocab_size).any())
        self.penalised = [i for i, row in enumerate(rows) if penalises(row.params)]
        """Rows for which it matters what has come before."""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class SamplingBatch:
    num_rows: int
    vocab_size: int
    options: npt.NDArray[np.void]
    """``[num_rows]`` of ``OPTIONS``"""
    draws_by_chance: bool
    """Whether any row does. Where none does they have no keys."""
    cuts: bool
    """Whether any row leaves tokens out by min_p, top_k or top_p."""
    masks: Masks | None
    """None: every token may come."""
    counts: mx.array | None
    """The table of counts; None where nothing is penalised."""
    biases: Biases
    """Of all rows, one row's after the other's."""
    logprob_rows: Ints
    """Those that ask for logprobs."""
    num_top_logprobs: int
    """The most that any of them asks for."""


def build_sampling_batch(
    rows: RowOptions,
    positions: npt.NDArray[np.int64],
    masks: Masks | None = None,
    counts: mx.array | None = None,
    counts_rows: Ints | None = None,
) -> SamplingBatch:
    """``positions``: of the token that each row draws, in its sequence. ``counts_rows``: each row's
    of the table ``counts``, -1 for those that penalise nothing; both are None where none does."""
    options = rows.options.copy()
    if rows.draws_by_chance:
        options["key"] = draw_keys(rows.seeds, positions)
    if masks is not None:
        options["mask_row"][masks.rows] = np.arange(len(masks.rows))
    if counts_rows is not None:
        options["counts_row"] = counts_rows
    return SamplingBatch(
        num_rows=len(rows),
        vocab_size=rows.vocab_size,
        options=options,
        draws_by_chance=rows.draws_by_chance,
        cuts=rows.cuts,
        masks=masks,
        counts=counts,
        biases=rows.biases,
        logprob_rows=rows.logprob_rows,
        num_top_logprobs=rows.num_top_logprobs,
    )


def penalises(params: SamplingParams) -> bool:
    """Whether it matters what has come before."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def _options(params: SamplingParams, vocab_size: int) -> tuple[object, ...]:
    is_greedy = params.temperature < _GREEDY_BELOW
    return (
        (0, 0),
        0.0 if is_greedy else params.temperature,
        log(params.min_p) if params.min_p > 0.0 else -inf,
        params.top_p,
        min(params.top_k or vocab_size, vocab_size),
        -1,
        -1,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
        0,
        0,
    )


def _cut(options: npt.NDArray[np.void], vocab_size: int) -> npt.NDArray[np.bool_]:
    """Of each row, whether it draws and leaves tokens out."""
    is_cut = (
        (options["top_k"] < vocab_size) | (options["top_p"] < 1.0) | (options["log_min_p"] > -inf)
    )
    return (options["temperature"] > 0.0) & is_cut


def _gather_biases(
    rows: Sequence[SamplingRow], options: npt.NDArray[np.void], vocab_size: int
) -> Biases:
    token_ids, values, last = [], [], 0
    for index, row in enumerate(rows):
        if row.biases is not None:
            inside = row.biases.token_ids < vocab_size
            token_ids.append(row.biases.token_ids[inside])
            values.append(row.biases.values[inside])
            options[index]["first_bias"] = last
            last += len(token_ids[-1])
            options[index]["last_bias"] = last
    if not last:
        return _NO_BIASES
    return Biases(np.concatenate(token_ids), np.concatenate(values))
