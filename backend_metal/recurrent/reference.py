"""The operators token by token in NumPy and float64: what kernels are checked against before they
serve. Arguments are those of ``operators.py``; slots and borders are lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def causal_conv(
    x: Floats,
    weight: Floats,
    bias: Floats | None,
    states: Floats,
    reads: Sequence[int],
    writes: Sequence[int],
    borders: Sequence[int],
) -> tuple[Floats, Floats]:
    kernel = weight.shape[0]
    out, after = np.zeros_like(x), states.copy()
    for read, write, begin, end in zip(reads, writes, borders, borders[1:], strict=False):
        past = states[read] if read >= 0 else np.zeros_like(states[0])
        inputs = np.concatenate([past, x[begin:end]])
        for token in range(end - begin):
            out[begin + token] = (inputs[token : token + kernel] * weight).sum(axis=0)
        after[write] = inputs[end - begin :]
    return out if bias is None else out + bias, after


def linear_attention(
    q: Floats,
    k: Floats,
    v: Floats,
    gates: Floats,
    betas: Floats,
    states: Floats,
    reads: Sequence[int],
    writes: Sequence[int],
    borders: Sequence[int],
    *,
    delta_rule: bool,
    gates_are_rates: bool = False,
) -> tuple[Floats, Floats]:
    if gates_are_rates:
        gates = np.exp(betas[..., None] * gates)
    group = v.shape[1] // k.shape[1]
    q, k = np.repeat(q, group, axis=1), np.repeat(k, group, axis=1)
    decays = gates[:, :, None, None] if gates.ndim == 2 else gates[:, :, None]
    out, after = np.zeros_like(v), states.copy()
    for read, write, begin, end in zip(reads, writes, borders, borders[1:], strict=False):
        state = states[read] if read >= 0 else np.zeros_like(states[0])
        for token in range(begin, end):
            state = state * decays[token]
            known = (state * k[token][:, None]).sum(axis=2) if delta_rule else 0.0
            update = betas[token][:, None] * (v[token] - known)
            state = state + update[:, :, None] * k[token][:, None]
            out[token] = (state * q[token][:, None]).sum(axis=2)
        after[write] = state
    return out, after
