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
    the ``shares[i]``-th part of the whole. Ever longer ones; none for a prompt below a chunk.
    ``session`` names what the request is part of, whatever its prompt."""

    keys: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    session: int | None = None

    def new(self, num_known: int) -> int | None:
        """What gateways agree by on a place for what is new behind the first ``num_known`` keys;
        None: nothing is."""
        if self.session is not None:
            return self.session
        return self.keys[num_known] if num_known < len(self.keys) else None


NO_AFFINITY = Affinity()


@dataclass(frozen=True)
class Placed:
    known: Placement
    cached_tokens: int = 0
    """Of the prompt, those that the replica has, as far as is known."""


@dataclass(frozen=True)
class Work:
    model: str
    tokens: int
    """Estimated prompt tokens plus the most that may be generated."""
    prompt_tokens: int = 0
    """Those of them that are the prompt's, of several prompts each one's."""
    affinity: Affinity = NO_AFFINITY
    num_sequences: int = 1
    """Continuations that are generated at the same time."""
    cached_tokens: int = 0
    """Those of the prompt that need not be computed where it is sent."""
