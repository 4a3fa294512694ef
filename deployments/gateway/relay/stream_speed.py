"""How fast a stream went, from what passed to the client."""

from __future__ import annotations

import time
from collections.abc import Callable

from deployments.http.sse import EVENT_END


class StreamSpeed:
    """Counts the events of one response; an engine sends about one for each token."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._first_at = 0.0
        self._latest_at = 0.0
        self.num_events = 0
        """Those after the first that came."""

    @property
    def seconds(self) -> float:
        """From the first event to the latest."""
        return self._latest_at - self._first_at

    def count(self, events: bytes) -> None:
        """Whole events that go out now."""
        self._latest_at = self._now()
        if self._first_at:
            self.num_events += events.count(EVENT_END)
        else:
            self._first_at = self._latest_at
