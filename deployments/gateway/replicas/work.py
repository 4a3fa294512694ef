"""What a gateway knows of a request when it picks a replica for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Affinity:
    """What ties a request to earlier ones: ``keys[i]`` names the beginning of its prompt that is
    the ``shares[i]``-th part of the whole. Ever longer ones; none for a prompt below a chunk."""

    keys: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()


NO_AFFINITY = Affinity()


@dataclass(frozen=True)
class Work:
    model: str
    tokens: int
    """Estimated prompt tokens plus the most that may be generated."""
    affinity: Affinity = NO_AFFINITY
    num_sequences: int = 1
    """Continuations that are generated at the same time."""
