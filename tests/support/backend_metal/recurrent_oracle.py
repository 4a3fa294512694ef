"""Steps for the recurrent operators, and float64 answers to them, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st

from backend_metal.recurrent import StateMetadata

NUM_SLOTS = 9


@dataclass(frozen=True)
class Layout:
    """Who reads and writes which slots, and how many tokens each has."""

    lengths: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def metadata(self) -> StateMetadata:
        borders = np.cumsum([0, *self.lengths]).astype(np.int32)
        metadata = StateMetadata.of(
            np.array(self.reads, np.int32), np.array(self.writes, np.int32), borders
        )
        metadata.check_integrity(NUM_SLOTS)
        return metadata


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Sequences that begin, go on in their own slot, or take over one that nobody writes."""
    lengths = draw(st.lists(st.one_of(st.just(1), st.integers(1, 19)), min_size=1, max_size=4))
    slots = draw(st.permutations(range(NUM_SLOTS)))
    writes, snapshots = slots[: len(lengths)], slots[len(lengths) :]
    reads = [draw(st.sampled_from([-1, write, *snapshots])) for write in writes]
    return Layout(tuple(lengths), tuple(reads), tuple(writes))


def conv(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None,
    states: np.ndarray,
    layout: Layout,
) -> tuple[np.ndarray, np.ndarray]:
    """``(out, states)``."""
    kernel = weight.shape[0]
    x, kept = x.astype(np.float64), states.astype(np.float64)
    out, after, begin = np.zeros_like(x), kept.copy(), 0
    for length, read, write in zip(layout.lengths, layout.reads, layout.writes, strict=True):
        past = kept[read] if read >= 0 else np.zeros_like(kept[0])
        inputs = np.concatenate([past, x[begin : begin + length]])
        for token in range(length):
            out[begin + token] = (inputs[token : token + kernel] * weight).sum(axis=0)
        after[write] = inputs[length:]
        begin += length
    return out + (0 if bias is None else bias), after


def linear_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    gates: np.ndarray,
    betas: np.ndarray,
    states: np.ndarray,
    layout: Layout,
    *,
    delta_rule: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """``(out, states)``."""
    q, k, v, gates, betas = (part.astype(np.float64) for part in (q, k, v, gates, betas))
    group = v.shape[1] // k.shape[1]
    q, k = np.repeat(q, group, axis=1), np.repeat(k, group, axis=1)
    if gates.ndim == 2:
        gates = np.broadcast_to(gates[..., None], k.shape)
    out, after, begin = np.zeros(v.shape), states.astype(np.float64), 0
    for length, read, write in zip(layout.lengths, layout.reads, layout.writes, strict=True):
        state = states[read].astype(np.float64) if read >= 0 else np.zeros(states.shape[1:])
        for token in range(begin, begin + length):
            state = state * gates[token][:, None, :]
            value = v[token]
            if delta_rule:
                value = value - np.einsum("hvk,hk->hv", state, k[token])
            update = betas[token][:, None] * value
            state = state + update[..., None] * k[token][:, None, :]
            out[token] = np.einsum("hvk,hk->hv", state, q[token])
        after[write] = state
        begin += length
    return out, after


def rounded(x: np.ndarray, dtype: mx.Dtype) -> np.ndarray:
    """What a dtype makes of it, in float32."""
    return np.array(mx.array(x).astype(dtype).astype(mx.float32))
