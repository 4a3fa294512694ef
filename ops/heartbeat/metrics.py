"""What Prometheus is told of beats."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from deployments.observe.metrics import LATENCY_BOUNDS
from ops.heartbeat.beat import OUTCOMES, Beat

LABELS = ("url", "model")


class HeartbeatMetrics:
    """Counters of one process. Of beats that fail there are no latencies."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "pomona_heartbeat_requests_total",
            "Requests made to be watched, by what they came to.",
            [*LABELS, "outcome"],
            registry=self.registry,
        )
        self._first_token = self._histogram(
            "pomona_heartbeat_time_to_first_token_seconds", "From the request to its first token."
        )
        self._duration = self._histogram(
            "pomona_heartbeat_duration_seconds", "From the request to the end of its stream."
        )

    def add(self, url: str, model: str) -> None:
        """What is to come for ``model`` at ``url``: a series that begins at 1 has no rate."""
        for outcome in OUTCOMES:
            self._requests.labels(url, model, outcome)

    def count(self, url: str, model: str, beat: Beat) -> None:
        self._requests.labels(url, model, beat.outcome).inc()
        if beat.outcome == "success":
            self._duration.labels(url, model).observe(beat.duration_s)
            if beat.first_token_s is not None:
                self._first_token.labels(url, model).observe(beat.first_token_s)

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(name, help_text, LABELS, buckets=LATENCY_BOUNDS, registry=self.registry)
