"""Weighted rendezvous hashing: everybody who knows the same replicas makes the same choice.

Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998); with weights,
Schindelhauer and Schomaker, "Weighted distributed hash tables" (2005). A key moves only when the
replica that has it leaves, or when one that suits it better joins or gains weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import xxhash

from deployments.fleet.directory import Replica

UNIT = 2.0**-52


def rendezvous(key: int, replicas: Sequence[Replica], weights: Sequence[float]) -> Replica:
    """The one of ``replicas`` for ``key``, an unsigned 64-bit integer. Each gets a share of all
    keys that is in proportion to its weight, which is more than 0."""
    best = max(range(len(replicas)), key=lambda index: _score(key, replicas[index], weights[index]))
    return replicas[best]


def _score(key: int, replica: Replica, weight: float) -> float:
    digest = xxhash.xxh3_64_intdigest(replica.replica_id.encode(), seed=key)
    # 52 bits and a half: a float holds it exactly, and it is neither 0 nor 1.
    return weight / -log(((digest >> 12) + 0.5) * UNIT)
