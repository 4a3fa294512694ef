"""How many requests may wait, and whose."""

from __future__ import annotations

import math
from typing import Protocol

from deployments.backend import QueueFullError

LONGEST_RETRY_SECONDS = 60


class Guest(Protocol):
    """What is asked of a request that comes in."""

    @property
    def request_id(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def n(self) -> int:
        """Sequences that it will have."""
        ...

    @property
    def was_admitted(self) -> bool: ...


class WaitingRoom:
    """Requests from when they come, before they are tokenized, to when they end.

    Those that have not begun wait; a request waits as one, however many sequences it will have. Of
    the room a tenant may take no more than it leaves free: dynamic thresholds (Choudhury & Hahne,
    1998). So one alone has half of it, and others find some.
    """

    def __init__(self, max_num_seqs: int, max_queued_requests: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_queued_requests = max_queued_requests
        self._waiting: dict[str, Guest] = {}
        self._begun: dict[str, Guest] = {}

    def enter(self, request: Guest, *, seconds_per_request: float) -> None:
        """Raises ``QueueFullError`` if there is no room for it. One that another backend had let in
        needs none. ``seconds_per_request``: what one takes once it runs."""
        if request.was_admitted:
            self._begun[request.request_id] = request
            return
        num_waiting, room = len(self._waiting), self._room()
        others = sum(one.tenant != request.tenant for one in self._waiting.values())
        own = num_waiting - others - max(0, self._free_places() - others)
        if room <= 0:
            why = f"{num_waiting} requests are waiting, as many as max_queued_requests allows"
        elif request.tenant and own >= room:
            why = "as many requests of this API key are waiting as leave room for others"
        else:
            self._waiting[request.request_id] = request
            return
        raise QueueFullError(
            why,
            retry_after=retry_after(
                num_running=len(self._begun),
                num_waiting=num_waiting,
                seconds_per_request=seconds_per_request,
            ),
            for_tenant=room > 0,
        )

    def begin(self, request_id: str) -> None:
        """It runs, or did so already."""
        if request := self._waiting.pop(request_id, None):
            self._begun[request_id] = request

    def leave(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)
        self._begun.pop(request_id, None)

    def _free_places(self) -> int:
        """In the batch; whoever waits for one is about to begin."""
        num_sequences = sum(request.n for request in self._begun.values())
        return max(0, self._max_num_seqs - num_sequences)

    def _room(self) -> int:
        return self._max_queued_requests + self._free_places() - len(self._waiting)


def retry_after(*, num_running: int, num_waiting: int, seconds_per_request: float) -> int:
    """Whole seconds until as many requests have ended as wait now, within bounds."""
    rounds = max(1, num_waiting) / max(1, num_running)
    return min(LONGEST_RETRY_SECONDS, max(1, math.ceil(seconds_per_request * rounds)))
