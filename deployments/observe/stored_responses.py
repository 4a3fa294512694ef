"""Metrics of the responses that are kept: what this gateway wrote, and what the store holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

WRITES = ("kept", "too_large", "failed")
EVICTIONS = ("age", "key", "memory")
_LABELS = ("replica", "node")


class StoredResponseMetrics(Collector):
    """The store is one for all gateways, and each of them tells of all of it."""

    def __init__(self, registry: CollectorRegistry, *, replica: str, node: str) -> None:
        self._names = (replica, node)
        self._held: tuple[int, int, Mapping[str, int]] | None = None
        self._writes = Counter(
            "pomona_stored_response_writes",
            "Responses that were to be kept, by what became of it.",
            [*_LABELS, "outcome"],
            registry=registry,
        )
        for outcome in WRITES:
            self._writes.labels(*self._names, outcome)
        registry.register(self)

    def wrote(self, outcome: str) -> None:
        """``outcome``: one of ``WRITES``."""
        self._writes.labels(*self._names, outcome).inc()

    def holds(self, num_responses: int, num_bytes: int, num_evicted: Mapping[str, int]) -> None:
        """``num_evicted``: since the store began, by one of ``EVICTIONS``."""
        self._held = (num_responses, num_bytes, num_evicted)

    def lost(self) -> None:
        """Nobody knows what the store holds."""
        self._held = None

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        if self._held is None:
            return
        num_responses, num_bytes, num_evicted = self._held
        for name, help_text, value in (
            ("pomona_stored_responses", "Responses that are kept.", num_responses),
            ("pomona_stored_responses_bytes", "Memory that they take.", num_bytes),
        ):
            gauge = GaugeMetricFamily(name, help_text, labels=_LABELS)
            gauge.add_metric(self._names, value)
            yield gauge
        evicted = CounterMetricFamily(
            "pomona_stored_responses_evicted",
            "Responses that had to go: too old, past their key's bound, or past all memory.",
            labels=[*_LABELS, "reason"],
        )
        for reason in EVICTIONS:
            evicted.add_metric([*self._names, reason], num_evicted.get(reason, 0))
        yield evicted
