"""What is known of one replica that is watched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from deployments.fleet.directory import Replica
from deployments.gateway.replicas.feed import EngineBuild, Feed
from deployments.gateway.watch.rates import Rates, Sample
from deployments.wire.reading import EngineReading

State = Literal["starting", "ready", "draining", "silent", "lost", "left"]
GONE: tuple[State, ...] = ("lost", "left")
SHOWN_S = 60.0
"""For so long those that are gone, and are not listed any more, are still shown."""


@dataclass
class Watched:
    """``now`` is in seconds."""

    replica: Replica
    feed: Feed
    now: Callable[[], float]
    was_there: bool = False
    """Before this gateway began to watch."""
    is_listed: bool = True
    state: State = "starting"
    reading: EngineReading | None = None
    """The latest."""
    has_answered: bool = False
    rates: Rates = field(default_factory=Rates)
    _changed_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._changed_at = self.now()

    @property
    def build(self) -> EngineBuild:
        """As far as it has told."""
        return EngineBuild(
            engine=self.replica.replica_id,
            node=self.replica.node,
            model=self.replica.model,
            revision=self.replica.revision or None,
            version=self.reading.version if self.reading else None,
        )

    @property
    def is_asked(self) -> bool:
        """Whether it may answer."""
        return self.is_listed or self.state not in GONE

    @property
    def is_forgotten(self) -> bool:
        return not self.is_asked and self.now() - self._changed_at >= SHOWN_S

    def answered(self, reading: EngineReading | None) -> None:
        """It is there; None: it knows of no readings."""
        self.has_answered = True
        self.reading = reading or self.reading
        if reading is not None:
            self.rates.add(Sample(self.now(), reading.prompt_tokens, reading.generation_tokens))
        is_leaving = not self.is_listed or (reading is not None and reading.is_draining)
        self._becomes("draining" if is_leaving else "ready")

    def was_silent(self) -> None:
        """It gave no answer in time."""
        self.rates.stop()
        self._becomes("silent" if self.is_listed else self._gone)

    def was_gone(self) -> None:
        """Nobody is at its address."""
        self.rates.stop()
        self._becomes(self._gone)

    @property
    def _gone(self) -> State:
        return "left" if self.state in ("draining", "left") else "lost"

    def _becomes(self, state: State) -> None:
        before, self.state = self.state, state
        if state == before:
            return
        self._changed_at = self.now()
        if state != "ready":
            # ``starting`` is what nothing becomes.
            assert state != "starting"
            self.feed.tell(state, self.replica)
        elif before != "starting":
            self.feed.tell("back", self.replica)
