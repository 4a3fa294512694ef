"""Counter-based noise: what a draw sees depends on (seed, position, token id) and nothing else.

A draw is the Gumbel-max trick: ``argmax(z + noise)`` is distributed as ``softmax(z)``. The noise
belongs to token ids, not to ranks, so masking tokens never changes what the others see.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = (np.uint64(bits) for bits in (27, 30, 31, 32))
_ONE = np.uint64(1)
_SMALLEST_UNIFORM = 2.0**-33


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection that spreads each bit."""
    x = (x ^ (x >> _30)) * _FIRST_FACTOR
    x = (x ^ (x >> _27)) * _SECOND_FACTOR
    return x ^ (x >> _31)


def draw_keys(
    seeds: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """``[rows, 2]`` keys of MLX's generator: element ``position`` of the stream of each seed."""
    start = _mix(seeds.view(np.uint64) + _GAMMA)
    mixed = _mix(start + (positions.view(np.uint64) + _ONE) * _GAMMA)
    keys = np.empty((len(mixed), 2), np.uint32)
    keys[:, 0] = mixed >> _32
    keys[:, 1] = mixed  # Its lower half.
    return keys


def uniform_noise(keys: mx.array, vocab_size: int) -> mx.array:
    """float32 ``[rows, vocab_size]`` in [0, 1), fine-grained near 0; each row from its own key."""

    def row(key: mx.array) -> mx.array:
        return mx.random.uniform(shape=(vocab_size,), key=key)

    return mx.vmap(row)(keys)


def gumbel(uniform: mx.array) -> mx.array:
    """Gumbel noise ``-log(-log(1 - u))``.

    The upper tail decides draws and comes from ``u`` near 0, where floats are dense; the usual
    ``-log(-log(u))`` takes it from ``u`` near 1 and can't draw tokens below a probability of 1e-8.
    """
    u = mx.maximum(uniform, _SMALLEST_UNIFORM)
    complement = 1.0 - u
    # What rounding took from the complement is added back: log1p to full precision, at half its
    # price on CPU.
    exponential = (u - (1.0 - complement)) - mx.log(complement)
    return -mx.log(exponential)
