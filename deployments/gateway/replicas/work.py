"""What a gateway knows of a request when it picks a replica for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Placement = Literal["unknown", "here", "elsewhere"]
"""Where the longest beginning of a prompt was sent before, as far as a gateway knows: nowhere, to
the replica that gets the prompt, or to others only."""


@dataclass(frozen=True)
class Affinity:
    """What ties a request to earlier ones: ``keys[i]`` names the beginning of its prompt that is
    the ``shares[i]``-th part of the whole. Ever longer ones; none for a prompt below a chunk. Of a
    request that is part of a session the last one names that, and counts as all of the prompt."""

    keys: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    has_session: bool = False

    def new(self, num_known: int) -> int | None:
        """What gateways agree by on a place for what is new behind the first ``num_known`` keys;
        None: nothing is."""
        keys = self.keys[num_known:]
        if not keys:
            return None
        return keys[-1] if self.has_session else keys[0]


NO_AFFINITY = Affinity()


@dataclass(frozen=True)
class Work:
    model: str
    tokens: int
    """Estimated prompt tokens plus the most that may be generated."""
    affinity: Affinity = NO_AFFINITY
    num_sequences: int = 1
    """Continuations that are generated at the same time."""
