"""The feed: what has happened to replicas of late, as one gateway has seen it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from deployments.fleet.directory import Replica

MOST_EVENTS = 50

EventKind = Literal["joined", "draining", "left", "silent", "lost", "back", "moved"]


class FleetEvent(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: int = Field(description="Counts this gateway's events.")
    time: float = Field(description="In seconds, as Unix counts them.")
    kind: EventKind = Field(
        description="`joined`, `draining` and `left`: an engine comes, is told to go, has gone. "
        "`silent`, `lost`, `back`: it gives no answer in time, nobody is there any more, it "
        "answers again. `moved`: a stream goes on at another engine."
    )
    engine: str
    node: str
    model: str
    to_engine: str | None = Field(None, description="Where the stream has moved to.")
    to_node: str | None = None
    tokens: int | None = Field(None, description="That the stream had when it moved.")


class Feed:
    """The latest events. Belongs to one event loop."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._num_told = 0
        self._events: deque[FleetEvent] = deque(maxlen=MOST_EVENTS)

    @property
    def events(self) -> tuple[FleetEvent, ...]:
        """The newest first."""
        return tuple(reversed(self._events))

    def tell(self, kind: EventKind, replica: Replica) -> None:
        self._add(kind, replica)

    def moved(self, replica: Replica, to: Replica, *, tokens: int) -> None:
        """A stream that had ``tokens`` goes on at another replica."""
        self._add("moved", replica, to, tokens)

    def _add(
        self,
        kind: EventKind,
        replica: Replica,
        to: Replica | None = None,
        tokens: int | None = None,
    ) -> None:
        self._num_told += 1
        self._events.append(
            FleetEvent(
                id=self._num_told,
                time=self._now(),
                kind=kind,
                engine=replica.replica_id,
                node=replica.node,
                model=replica.model,
                to_engine=to.replica_id if to else None,
                to_node=to.node if to else None,
                tokens=tokens,
            )
        )
