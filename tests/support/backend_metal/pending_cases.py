"""Random steps with pending tokens, filled in by operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st


@dataclass(frozen=True)
class Case:
    num_tokens: int
    num_drawn: int
    strides: tuple[int, int]
    share_pending: float
    seed: int


cases = st.builds(
    Case,
    # Around a block's threads, and several blocks.
    num_tokens=st.one_of(st.integers(1, 40), st.integers(120, 140), st.integers(1, 1000)),
    num_drawn=st.integers(1, 300),
    strides=st.tuples(st.sampled_from([1, 1, -1, 3]), st.sampled_from([1, 1, -2, 5])),
    share_pending=st.sampled_from([0.0, 0.2, 1.0]),
    seed=st.integers(0, 2**16),
)


def check(fill_in: Callable[[mx.array, mx.array], mx.array], case: Case) -> None:
    rng = np.random.default_rng(case.seed)
    known = rng.integers(0, 2**31 - 1, case.num_tokens, dtype=np.int32)
    rows = rng.integers(0, case.num_drawn, case.num_tokens)
    is_pending = rng.random(case.num_tokens) < case.share_pending
    tokens = rng.integers(0, 2**31 - 1, case.num_drawn, dtype=np.int32)
    token_ids = np.where(is_pending, -1 - rows, known).astype(np.int32)
    token_stride, drawn_stride = case.strides
    out = fill_in(_strided(token_ids, token_stride), _strided(tokens, drawn_stride))
    assert out.dtype == mx.int32
    np.testing.assert_array_equal(np.array(out), np.where(is_pending, tokens[rows], known))


def _strided(ids: np.ndarray[tuple[int], np.dtype[np.int32]], stride: int) -> mx.array:
    """A view of a larger array, as those of a step's integers are."""
    wide = np.full(2 + len(ids) * abs(stride), -(2**31), np.int32)
    first = 1 if stride > 0 else 1 + (len(ids) - 1) * -stride
    wide[first + stride * np.arange(len(ids))] = ids
    whole = mx.array(wide)
    mx.eval(whole)
    if stride > 0:
        return whole[1 : 1 + len(ids) * stride : stride]
    return whole[first:0:stride]
