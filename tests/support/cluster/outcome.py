"""What comes of streams that something happens to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.cluster.alerts import Alert, alerts_since, prometheus
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.events import Event
from tests.support.cluster.load import Load
from tests.support.cluster.requests import Clients
from tests.support.cluster.said import Said
from tests.support.cluster.status import wait_until
from tests.support.cluster.streams import Stream
from tests.support.cluster.validity import problem_of

Endpoint = Callable[[int], str]
"""Where each client goes."""

UNDER_WAY_S = 0.25
"""Tokens that come so soon after an event left before it."""


@dataclass(frozen=True)
class Outcome:
    streams: Sequence[Stream]
    happened_at: float
    recovered_s: float
    alerts: Sequence[Alert] = ()
    """That fired or were pending from the event until then."""

    @property
    def failures(self) -> list[str]:
        problems = ((one.number, _problem_of(one)) for one in self.streams)
        return [f"{number}: {problem}" for number, problem in problems if problem]

    def differences(self, *undisturbed: Sequence[Said]) -> list[str]:
        """Streams that are whole, but say what none of these runs did."""
        return [
            f"{one.number}: {one.said} is not {undisturbed[0][one.number]}"
            for one in self.streams
            if one.done and one.said not in [run[one.number] for run in undisturbed]
        ]

    @property
    def parts_met(self) -> Counter[str]:
        """What the event found under way, by endpoint: streams in the middle of a text, of JSON, of
        a thought or of a call."""
        met = ((one.request, one.part_at(self.happened_at)) for one in self.streams)
        return Counter(
            f"{request.path} {request.form if part == 'text' else part}"
            for request, part in met
            if part
        )

    @property
    def longest_silence_s(self) -> float:
        """Between two tokens of a stream."""
        return max(stream.longest_silence_s() for stream in self.streams)

    @property
    def next_token_s(self) -> float:
        """From the event until the last stream that ran then had its next token."""
        after = self.happened_at + UNDER_WAY_S
        waits = [
            next(time for time in stream.token_times if time >= after) - self.happened_at
            for stream in self.streams
            if stream.token_times and stream.token_times[0] < after <= stream.token_times[-1]
        ]
        return max(waits, default=0.0)

    @property
    def figures(self) -> str:
        return (
            f"{len(self.streams)} requests, {len(self.failures)} failed, longest silence "
            f"{self.longest_silence_s:.1f} s, recovered after {self.recovered_s:.0f} s, "
            f"alerts: {', '.join(map(str, self.alerts)) or 'none'}"
        )


def _problem_of(stream: Stream) -> str | None:
    if stream.failure or not stream.done:
        return stream.failure or "it has no end"
    return problem_of(stream.request, stream.said)


def observe(cluster: Cluster, event: Event, endpoint: Endpoint, clients: Clients) -> Outcome:
    """Each client has an answer under way from before the event until it is over."""
    with prometheus(cluster.folder), Load(endpoint, clients.requests) as load:
        wait_until(lambda: load.num_running == len(clients.requests), "all streams run at once")
        moment = event.happen(load)
        wait_until(event.is_over, "the cluster has recovered", event.patience_s)
        recovered_s = time.monotonic() - moment
        alerts = alerts_since(moment)
    return Outcome(load.streams, moment, recovered_s, alerts)


class Answers:
    """What each request is answered when nothing happens, by each model."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[str, Clients], list[Said]] = {}

    def of_now(self, clients: Clients) -> list[Said]:
        """By the model that is deployed."""
        key = (self._cluster.model, clients)
        if key not in self._known:
            self._known[key] = self._undisturbed(clients)
        return self._known[key]

    def _undisturbed(self, clients: Clients) -> list[Said]:
        with Load(self._cluster.gateway_of, clients.requests) as load:
            pass
        if failures := Outcome(load.streams, 0.0, 0.0).failures:
            raise RuntimeError(f"{len(failures)} streams failed in peace: {failures[0]}")
        return [stream.said for stream in load.streams]
