"""The directory of replicas: each gateway has the whole list, and asks nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

POLL_INTERVAL_S = 0.02
REPLACED_WITHIN_S = 600.0
"""A model without a replica for longer is gone, and no longer expected back."""


@dataclass(frozen=True)
class Replica:
    """Where one replica's own HTTP server is, and what it serves."""

    replica_id: str
    node: str
    url: str
    model: str
    max_model_len: int
    secret: str = field(repr=False)
    """What that server asks of callers; known to whoever the controller tells."""
    revision: str = ""
    """Of the model: another replica continues an answer only if it has the same."""
    other_names: tuple[str, ...] = ()
    """Of the model, in requests."""
    longest_token: int = 0
    """Characters of a text that one token takes, at most; 0: nobody knows."""
    thinks: bool = False
    """Whether a request can make the model think."""
    start_s: float = 0.0
    """Seconds that its start took; 0 if unknown."""

    @property
    def lineage(self) -> tuple[str, int]:
        """What an answer's tokens depend on: one that a replica began can end at any other with
        the same. Where a context ends, an answer does."""
        return self.revision, self.max_model_len

    def metadata(self) -> dict[str, Any]:
        """For ``record_replica_metadata``."""
        return asdict(self)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Replica:
        """Fields of another release are passed over."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in metadata.items() if name in known})


class ReplicaDirectory:
    """The replicas that run now. Written by the router's thread, read by the event loop's."""

    def __init__(
        self, replicas: Sequence[Replica] = (), now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self._replicas = tuple(replicas)
        self._gone: dict[str, tuple[float, tuple[Replica, ...]]] = {}
        """By model: since when it has no replica, and its last ones."""

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return self._replicas

    def replace(self, replicas: Sequence[Replica]) -> None:
        served = {replica.model for replica in replicas}
        gone = {name: found for name, found in self._gone.items() if name not in served}
        for model in {replica.model for replica in self._replicas} - served:
            gone[model] = self._now(), self.serving(model)
        # Whatever is rebound at once: a reader sees the old or the new.
        self._gone = gone
        self._replicas = tuple(sorted(replicas, key=lambda replica: replica.replica_id))

    async def wait_for_any(self, patience_s: float) -> None:
        """Returns once there are replicas, or after ``patience_s`` seconds without any."""
        give_up_at = time.monotonic() + patience_s
        while True:
            if self._replicas or time.monotonic() >= give_up_at:
                return
            # What changes the list is another thread, which knows no loop to wake.
            await asyncio.sleep(POLL_INTERVAL_S)

    def models(self) -> dict[str, int]:
        """Model name to the longest sequence that every replica of it accepts, in tokens."""
        models: dict[str, int] = {}
        for replica in self._replicas:
            longest = models.get(replica.model, replica.max_model_len)
            models[replica.model] = min(longest, replica.max_model_len)
        return models

    def name_of(self, asked: str) -> str:
        """The name of the model that a request calls ``asked``; the same, if it is unknown."""
        if self.serving(asked):
            return asked
        gone = (one for _, last in self._gone.values() for one in last)
        known = (one.model for one in (*self._replicas, *gone) if asked in one.other_names)
        return next(known, asked)

    def serving(self, model: str) -> tuple[Replica, ...]:
        return tuple(replica for replica in self._replicas if replica.model == model)

    def lately_serving(self, model: str) -> tuple[Replica, ...]:
        """The same, or those that were the last, for as long as others may be on their way."""
        since, last = self._gone.get(model, (0.0, ()))
        is_remembered = self._now() - since < REPLACED_WITHIN_S
        return self.serving(model) or (last if is_remembered else ())


_process_directory = ReplicaDirectory()


def process_directory() -> ReplicaDirectory:
    """The directory that this process's handle to the engine deployment keeps up to date."""
    return _process_directory
