"""Weighted rendezvous hashing: everybody who knows the same replicas makes the same choice.

Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998); with weights,
Schindelhauer and Schomaker, "Weighted distributed hash tables" (2005). A key moves only when the
replica that has it leaves, or when one that suits it better joins or gains weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import xxhash

UNIT = 2.0**-52


def rendezvous(key: int, names: Sequence[str], weights: Sequence[float]) -> int:
    """Index of the one of ``names`` for ``key``, an unsigned 64-bit integer. Each gets a share of
    all keys that is in proportion to its weight, which is more than 0."""
    return max(range(len(names)), key=lambda index: _score(key, names[index], weights[index]))


def _score(key: int, name: str, weight: float) -> float:
    digest = xxhash.xxh3_64_intdigest(name.encode(), seed=key)
    # 52 bits and a half: a float holds it exactly, and it is neither 0 nor 1.
    return weight / -log(((digest >> 12) + 0.5) * UNIT)
