"""Draws of tokens as float64 has them, and rows to draw for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from backend_metal.engine.sampling.batch import (
    Biases,
    RowOptions,
    SamplingBatch,
    SamplingRow,
    build_sampling_batch,
    penalises,
)
from backend_metal.engine.sampling.kernel import Draw
from backend_metal.engine.sampling.masking import BITS, Masks
from backend_metal.engine.sampling.noise import draw_keys, uniform_noise
from backend_metal.engine.sampling.token_counts import History, TokenCounts
from deployments.backend import SamplingParams

Array = npt.NDArray[np.float64]
Allowed = npt.NDArray[np.bool_]


class Owner:
    """Of a history."""


@dataclass(frozen=True)
class Row(SamplingRow):
    """With what came before, for an oracle that counts by itself."""

    position: int = 0
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()

    @property
    def history(self) -> History:
        token_ids = np.array([*self.prompt, *self.output], np.int32)
        return History(Owner(), len(self.prompt), token_ids)


def make_row(
    params: SamplingParams,
    seed: int = 0,
    position: int = 0,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
) -> Row:
    biases = Biases.of(params.logit_bias) if params.logit_bias else None
    return Row(params, seed, biases, position, tuple(prompt), tuple(output))


def batch_of(rows: Sequence[Row], vocab_size: int, masks: Masks | None = None) -> SamplingBatch:
    counts = TokenCounts(vocab_size)
    histories = {i: row.history for i, row in enumerate(rows) if penalises(row.params)}
    counts_rows = np.full(len(rows), -1, np.int32)
    counts_rows[[*histories]] = counts.rows_of([*histories.values()])
    return build_sampling_batch(
        RowOptions(rows, vocab_size),
        np.array([row.position for row in rows]),
        masks,
        counts=counts.table if histories else None,
        counts_rows=counts_rows if histories else None,
    )


def oracle_scores(logits: Array, row: Row) -> tuple[Array, Array]:
    """Scaled logits and the mass ranked before each token, both before top_p."""
    p, x = row.params, logits.copy()
    for token in {*row.prompt, *row.output}:
        x[token] = (
            x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
        )
    for token, count in Counter(row.output).items():
        x[token] -= p.frequency_penalty * count + p.presence_penalty
    for token, bias in p.logit_bias.items():
        if token < len(x):
            x[token] += bias
    z = (x - x.max()) / p.temperature
    order = np.argsort(-z, kind="stable")
    z[order[p.top_k or len(z) :]] = -np.inf
    z[np.exp(z) < p.min_p] = -np.inf
    probabilities = np.exp(z) / np.exp(z).sum()
    before = np.empty_like(z)
    before[order] = np.cumsum(probabilities[order]) - probabilities[order]
    return z, before


def oracle_draw(logits: Array, row: Row, noise: Array) -> set[int]:
    """Every token that rounding of float32 may make the right one."""
    z, before = oracle_scores(logits, row)
    allowed = set()
    for slack in (-2e-5, 2e-5):
        kept = (before < row.params.top_p + slack) | (before == 0.0) | (row.params.top_p == 1.0)
        score = np.where(kept, z, -np.inf) + noise
        allowed |= set(np.flatnonzero(score >= score.max() - 1e-4).tolist())
    return allowed


def exact_noise(seed: int, position: int, vocab_size: int) -> Array:
    keys = mx.array(draw_keys(np.array([seed]), np.array([position])))
    u = np.maximum(np.array(uniform_noise(keys, vocab_size), np.float64)[0], 2.0**-33)
    return -np.log(-np.log1p(-u))


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.2, 0.7, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 1.0, 0.999, 0.9, 0.5, 0.05, 1e-6]),
    top_k=st.sampled_from([0, 0, 1, 2, 20, 128, 129, 500]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, -1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.5, 0.7]),
    logit_bias=st.dictionaries(st.integers(0, 39), st.floats(-100, 100), max_size=3),
)


plain_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.9]),
    top_k=st.sampled_from([0, 0, 20]),
)
"""Of rows whose logits are the model's, as most are."""


@dataclass(frozen=True)
class Case:
    params: list[SamplingParams]
    """Of each, rows at several positions."""
    vocab_size: int
    tokens: list[int]
    """That have come before, of which so many are of the prompt."""
    num_prompt_tokens: int
    seed: int
    left_out: float | None
    """The share of tokens that masks of every other row leave out; None: there are no masks."""
    ties: bool
    dtype: mx.Dtype
    columns: tuple[int, int] = (0, 0)
    """Of the array that logits are a part of, before them and behind them."""


def cases(
    vocab_sizes: Sequence[int],
    dtypes: Sequence[mx.Dtype] = (mx.float32, mx.float16, mx.bfloat16),
) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        params=st.lists(
            st.one_of(params_strategy, params_strategy, plain_strategy), min_size=1, max_size=6
        ),
        vocab_size=st.sampled_from(vocab_sizes),
        tokens=st.lists(st.integers(0, 39), max_size=30),
        num_prompt_tokens=st.integers(0, 30),
        seed=st.integers(-(2**63), 2**63 - 1),
        left_out=st.sampled_from([None, 0.01, 0.5, 0.95]),
        ties=st.booleans(),
        dtype=st.sampled_from(dtypes),
        columns=st.sampled_from([(0, 0), (0, 0), (0, 8), (8, 8), (16, 1), (1, 0)]),
    )


def check(draw: Draw, case: Case) -> None:
    """Each row's token is one that float64 allows, and the same where the row is alone."""
    rows, logits = _rows_of(case), _logits_of(case)
    masks, allowed = make_masks(case, len(rows))
    exact = np.array(logits.astype(mx.float32), np.float64)
    drawn = draw(logits, batch_of(rows, case.vocab_size, masks)).tolist()
    _check_drawn(rows, np.where(allowed, exact, -np.inf), drawn)
    alone = batch_of(rows[-1:], case.vocab_size, None if masks is None else _last(masks))
    assert draw(logits[-1:], alone).tolist() == drawn[-1:]


def check_places(draw: Draw, case: Case, bad: float | None) -> None:
    """Where in memory logits lie changes nothing; ``bad``: what some of them are."""
    rows = _rows_of(case)
    batch = batch_of(rows, case.vocab_size, make_masks(case, len(rows))[0])
    logits = _logits_of(case)
    if bad is not None:
        rng = np.random.default_rng(case.seed % 1000)
        is_bad = rng.random(logits.shape) < rng.choice([1e-3, 0.5, 1.0], (len(rows), 1))
        logits = mx.where(mx.array(is_bad), mx.array(bad, logits.dtype), logits)
    drawn = [draw(_part(logits, columns), batch).tolist() for columns in ((0, 0), (1, 0), (0, 3))]
    assert drawn[1:] == drawn[:1] * 2


def _rows_of(case: Case) -> list[Row]:
    tokens = [token % case.vocab_size for token in case.tokens]
    prompt, output = tokens[: case.num_prompt_tokens], tokens[case.num_prompt_tokens :]
    return [make_row(p, case.seed, pos, prompt, output) for p in case.params for pos in range(4)]


def _logits_of(case: Case) -> mx.array:
    rows = 4 * len(case.params)
    logits = make_logits(rows, case.vocab_size, case.seed % 1000, case.ties)
    return _part(logits.astype(case.dtype), case.columns)


def _part(logits: mx.array, columns: tuple[int, int]) -> mx.array:
    """The same as a part of a wider array."""
    before, behind = columns
    # What is beside them would be drawn.
    wide = mx.pad(logits, [(0, 0), columns], constant_values=mx.array(1e4, logits.dtype))
    mx.eval(wide)
    return wide[:, before : wide.shape[1] - behind]


def check_many(draw: Draw, dtype: mx.Dtype, vocab_size: int = 20_001) -> None:
    """Of a large vocabulary most stays, in rows beside others that leave out little or nothing."""
    params = (
        SamplingParams(top_p=0.99),
        SamplingParams(),
        SamplingParams(top_k=9000, top_p=0.9),
        SamplingParams(min_p=0.3, temperature=0.7),
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=12_000, frequency_penalty=0.5, presence_penalty=0.1),
        SamplingParams(top_k=50, temperature=0.01),
        SamplingParams(top_p=0.5, min_p=0.1, logit_bias={7: 3.0, vocab_size - 1: 3.0}),
    )
    output = [3, 3, 19_000]
    rows = [make_row(one, 5, position, output=output) for position in range(2) for one in params]
    # Of 2 bytes, many are equal.
    logits = (make_logits(len(rows), vocab_size, 1) * 0.1 + 20.0).astype(dtype)
    exact = np.array(logits.astype(mx.float32), np.float64)
    _check_drawn(rows, exact, draw(logits, batch_of(rows, vocab_size)).tolist())


def _check_drawn(rows: Sequence[Row], exact: Array, drawn: Sequence[int]) -> None:
    """``exact``: the logits of each row's tokens that may come."""
    for row, own, token in zip(rows, exact, drawn, strict=True):
        noise = exact_noise(row.seed, row.position, len(own))
        if row.params.temperature == 0.0:
            assert token == int(np.argmax(own))
        else:
            assert token in oracle_draw(own, row, noise), row.params


def check_equals(draw: Draw, num_rows: int) -> None:
    """Of equal logits, as a half-precision model has many, the lowest ids are kept."""
    vocab_size = 1000
    logits = np.zeros((num_rows, vocab_size), np.float32)
    logits[:, 700:] = 1.0
    weights = 300 * np.e + 700
    top_p = 0.8995 * 300 * np.e / weights
    for params, kept in (
        (SamplingParams(top_p=top_p), range(700, 970)),
        (SamplingParams(top_k=200), range(700, 900)),
        (SamplingParams(top_k=330, temperature=2.0), [*range(30), *range(700, 1000)]),
        (SamplingParams(top_k=200, top_p=0.4999), range(700, 800)),
    ):
        rows = [make_row(params, 7, position) for position in range(num_rows)]
        drawn = set(draw(mx.array(logits), batch_of(rows, vocab_size)).tolist())
        assert drawn <= set(kept)
        # The last hundred of them are as likely as others.
        assert len(drawn & set(list(kept)[-100:])) > min(num_rows, 100) // 5


def check_broken(draw: Draw, vocab_size: int = 700) -> None:
    """A model may give no numbers: some token is drawn, and other rows draw what they did."""
    params = (
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=5, top_p=0.9),
        SamplingParams(min_p=0.1, temperature=1e-4),
    )
    rows = [make_row(one, 3, position) for position in range(4) for one in params]
    batch = batch_of(rows, vocab_size)
    logits = make_logits(len(rows), vocab_size)
    good = draw(logits, batch).tolist()
    for bad in (np.nan, np.inf, -np.inf):
        broken = np.array(logits)
        broken[:4] = bad
        broken[4:8, ::2] = bad
        broken[8:12, 5] = bad
        drawn = draw(mx.array(broken), batch).tolist()
        assert all(0 <= token < vocab_size for token in drawn)
        assert drawn[12:] == good[12:]


def make_logits(rows: int, vocab_size: int, seed: int = 0, ties: bool = False) -> mx.array:
    logits = np.random.default_rng(seed).normal(0, 3, (rows, vocab_size))
    if ties:
        logits = np.round(logits * 2) / 2
    return mx.array(logits.astype(np.float32))


def make_masks(case: Case, num_rows: int) -> tuple[Masks | None, Allowed]:
    """Masks of every other row, the last one's among them, and which tokens they leave of each."""
    allowed = np.ones((num_rows, case.vocab_size), bool)
    if case.left_out is None:
        return None, allowed
    rows = np.arange(1, num_rows, 2, dtype=np.int32)
    width = -(-case.vocab_size // BITS) * BITS
    held = np.random.default_rng(case.vocab_size).random((len(rows), width)) >= case.left_out
    held[:, 0] = True
    words = np.packbits(held, axis=1, bitorder="little").view(np.int32)
    allowed[rows] = held[:, : case.vocab_size]
    return Masks(rows, words), allowed


def _last(masks: Masks) -> Masks:
    return Masks(np.zeros(1, np.int32), masks.words[-1:])
