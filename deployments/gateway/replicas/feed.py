"""The feed: what has happened to replicas of late, as one gateway has seen it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from deployments.fleet.directory import Replica

MOST_EVENTS = 50

EventKind = Literal["joined", "draining", "left", "silent", "lost", "back", "moved", "deployed"]


class EngineBuild(BaseModel):
    """What an engine is made of. ``null``: it does not tell."""

    model_config = ConfigDict(frozen=True)

    engine: str
    node: str
    model: str
    revision: str | None = Field(
        description="Of the model: a digest of all that its tokens depend on."
    )
    version: str | None = Field(description="Of Pomona.")


class FleetEvent(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: int = Field(description="Counts this gateway's events.")
    time: float = Field(description="In seconds, as Unix counts them.")
    kind: EventKind = Field(
        description="`joined`, `draining` and `left`: an engine comes, is told to go, has gone. "
        "`silent`, `lost`, `back`: it gives no answer in time, nobody is there any more, it "
        "answers again. `moved`: a stream goes on at another engine. `deployed`: it has taken a "
        "place, with another model, another revision of it, or another version of Pomona."
    )
    engine: str
    node: str
    model: str
    to_engine: str | None = Field(None, description="Where the stream has moved to.")
    to_node: str | None = None
    tokens: int | None = Field(None, description="That the stream had when it moved.")
    build: EngineBuild | None = Field(None, description="Of an engine that was deployed.")
    replaced: EngineBuild | None = Field(None, description="Whose place that engine has taken.")


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
        self._add("moved", replica, to_engine=to.replica_id, to_node=to.node, tokens=tokens)

    def deployed(self, replica: Replica, build: EngineBuild, replaced: EngineBuild) -> None:
        """It has taken the place of one of another build."""
        self._add("deployed", replica, build=build, replaced=replaced)

    def _add(self, kind: EventKind, replica: Replica, **more: Any) -> None:
        self._num_told += 1
        self._events.append(
            FleetEvent(
                id=self._num_told,
                time=self._now(),
                kind=kind,
                engine=replica.replica_id,
                node=replica.node,
                model=replica.model,
                **more,
            )
        )
