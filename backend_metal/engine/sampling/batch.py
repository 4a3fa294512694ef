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
_MOST_TOKEN_IDS = 2**31

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

OPTIONS = np.dtype(
    [
        ("key", np.uint32, 2),  # of the row's noise
        ("temperature", np.float32),  # 0: greedy
        ("log_min_p", np.float32),  # minus infinity: off
        ("top_p", np.float32),  # 1: off
        ("top_k", np.int32),  # the size of the vocabulary: off
        ("counts_row", np.int32),  # -1: nothing is penalised
        ("repetition", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("first_bias", np.int32),
        ("last_bias", np.int32),
    ]
)
"""As ``csrc/cpu/draw.h`` has them."""


@dataclass(frozen=True)
class Biases:
    """What is added to logits of some tokens, each of which comes once."""

    token_ids: Ints
    values: Floats

    @classmethod
    def of(cls, logit_bias: Mapping[int, float]) -> Biases:
        """Those of tokens that there can be."""
        known = {token: bias for token, bias in logit_bias.items() if 0 <= token < _MOST_TOKEN_IDS}
        return cls(
            np.fromiter(known, np.int32, len(known)),
            np.fromiter(known.values(), np.float32, len(known)),
        )


_NO_BIASES = Biases.of({})


@dataclass(frozen=True)
class SamplingRow:
    """One row of logits: draw the token at ``position`` of a sequence."""

    params: SamplingParams
    seed: int
    """Signed 64-bit."""
    position: int
    counts_row: int | None = None
    """Of the table of counts; None where nothing is penalised."""
    biases: Biases | None = None


@dataclass(frozen=True)
class SamplingBatch:
    num_rows: int
    vocab_size: int
    options: npt.NDArray[np.void]
    """``[num_rows]`` of ``OPTIONS``"""
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

    @property
    def takes_largest(self) -> bool:
        """Whether each row's token is that of the model's own largest logit."""
        return (
            self.masks is None
            and self.counts is None
            and not len(self.biases.token_ids)
            and not self.options["temperature"].any()
        )


def build_sampling_batch(
    rows: Sequence[SamplingRow],
    vocab_size: int,
    masks: Masks | None = None,
    counts: mx.array | None = None,
) -> SamplingBatch:
    """Loops over rows, never over tokens; token ids outside the vocabulary have no effect."""
    asked = {
        i: row.params.logprobs for i, row in enumerate(rows) if row.params.logprobs is not None
    }
    penalised = any(row.counts_row is not None for row in rows)
    options = np.array([_options(row, vocab_size) for row in rows], OPTIONS)
    options["key"] = draw_keys(
        np.array([row.seed for row in rows], np.int64),
        np.array([row.position for row in rows], np.int64),
    )
    return SamplingBatch(
        num_rows=len(rows),
        vocab_size=vocab_size,
        options=options,
        masks=masks,
        counts=counts if penalised else None,
        biases=_gather_biases(rows, options, vocab_size),
        logprob_rows=np.fromiter(asked, np.int32, len(asked)),
        num_top_logprobs=min(max(asked.values(), default=0), vocab_size),
    )


def penalises(params: SamplingParams) -> bool:
    """Whether it matters what has come before."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def _options(row: SamplingRow, vocab_size: int) -> tuple[object, ...]:
    params = row.params
    is_greedy = params.temperature < _GREEDY_BELOW
    return (
        (0, 0),
        0.0 if is_greedy else params.temperature,
        log(params.min_p) if params.min_p > 0.0 else -inf,
        params.top_p,
        min(params.top_k or vocab_size, vocab_size),
        -1 if row.counts_row is None else row.counts_row,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
        0,
        0,
    )


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
