"""A resumable stream in the gateway: its events get ids, and those that the client has are left
out.

A client that lost its gateway comes back with the id of its last event, perhaps to another gateway.
The replica leaves out the tokens whose events the client has, all of them; what the client has of
the tokens behind those is left out here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from deployments.fleet.directory import Replica
from deployments.http import sse
from deployments.wire.checkpoint import CheckpointReader, num_named
from deployments.wire.resumption import NO_CHOICE, Resumption
from deployments.wire.seen import Seen

_DATA = b'data: {"'
_NAMED = b"event: "
"""So begin the events of APIs whose answers have one choice."""
_BEFORE_INDEX = b'"choices":[{"index":'
"""No text can contain it: JSON escapes its quotation marks."""


class ResumableReader(CheckpointReader):
    """Reads one stream for a client that may come back, or has come back."""

    def __init__(self, resumption: Resumption, key: bytes, last_event: bytes = sse.DONE) -> None:
        super().__init__()
        self._first = self._latest = resumption
        self._key = key
        self._last_event = last_event.removesuffix(sse.EVENT_END)
        """It has no id: nothing follows it."""
        self.forget()

    @property
    def lineage(self) -> tuple[str, int] | None:
        """Of the replica that the client has events from."""
        return self._first.lineage if self._first.replica_id else None

    @property
    def replica_id(self) -> str:
        """The replica that may still have the tokens of what the client has seen."""
        return self._first.replica_id

    def served_by(self, replica: Replica) -> None:
        """Whatever follows comes from there."""
        self._latest = replace(self._first, replica_id=replica.replica_id, lineage=replica.lineage)

    def forget(self) -> None:
        super().forget()
        self._tokens_seen = dict(self._first.seen.tokens)
        self._cached_tokens = dict(self._first.seen.cached_tokens)
        self._num_logged_of = Counter[int]()
        self._to_skip = Counter(self._first.events_seen)
        self.num_events = self._first.num_events

    def _pass(self, events: bytes, entries: bytes) -> bytes:
        begun, added = _read(entries)
        self._cached_tokens = begun | self._cached_tokens
        seen = Seen(self._tokens_seen, self._cached_tokens)
        num_events = self.num_events
        events_seen = +self._to_skip
        passed = []
        for event in events.split(sse.EVENT_END):
            if event == self._last_event or not event.startswith((_DATA, _NAMED)):
                passed.append(event)
                continue
            choice = _choice_of(event)
            if self._to_skip[choice]:
                self._to_skip[choice] -= 1
                self.num_events += num_named(event)
                continue
            events_seen[choice] += 1
            latest = replace(
                self._latest, seen=seen, num_events=num_events, events_seen=events_seen
            )
            passed.append(event + b"\nid: " + latest.sign(self._key).encode())
        for choice, count in added.items():
            self._num_logged_of[choice] += count
            logged = self._num_logged_of[choice]
            self._tokens_seen[choice] = max(self._tokens_seen.get(choice, 0), logged)
        going_on = sse.EVENT_END.join(passed) or sse.KEEP_ALIVE.removesuffix(sse.EVENT_END)
        return super()._pass(going_on, entries)


def _read(entries: bytes) -> tuple[dict[int, int], Counter[int]]:
    """Of a checkpoint: cached tokens by prompt that has begun, and the number of tokens by
    choice."""
    begun: dict[int, int] = {}
    added = Counter[int]()
    for entry in entries.split():
        choice, _, ids = entry.partition(b":")
        if ids:
            added[int(choice)] += ids.count(b",") + 1
        else:
            prompt, _, counts = entry.partition(b"=")
            begun[int(prompt)] = int(counts.partition(b"/")[0])
    return begun, added


def _choice_of(event: bytes) -> int:
    if event.startswith(_NAMED):
        return 0
    _, found, index = event.partition(_BEFORE_INDEX)
    return int(index.partition(b",")[0]) if found else NO_CHOICE
