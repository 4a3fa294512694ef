"""Readings as Prometheus metrics, `pomona_host_` and one label `node`."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.observe.host import linux, macos
from deployments.observe.host.reading import METRICS, Reading, Source, common_sources

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0


def host_sources(session_folder: Path) -> list[Source]:
    """Everything that this platform tells. ``session_folder``: where Ray keeps its sessions."""
    found = list(common_sources(session_folder))
    if sys.platform == "linux":
        found += linux.sources()
    elif sys.platform == "darwin":
        found += macos.sources()
    return found


class HostCollector(Collector):
    """Reads in a thread of its own: some of it runs commands, and a scrape must not wait."""

    def __init__(self, node: str, sources: Sequence[Source]) -> None:
        self._node = node
        self._sources = sources
        self._readings: list[Reading] = []
        self._failed: set[str] = set()
        """Names of sources whose failure has been told."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def readings(self) -> Sequence[Reading]:
        """The latest, all of one time."""
        return self._readings

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        readings = self._readings
        for metric in METRICS:
            found = [one for one in readings if one.metric is metric]
            if not found:
                continue
            labels = ["node", metric.label] if metric.label else ["node"]
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(f"pomona_host_{metric.name}", metric.help_text, labels=labels)
            for one in found:
                family.add_metric([self._node, one.label_value][: len(labels)], one.value)
            yield family

    def _run(self) -> None:
        while True:
            # Replaced as a whole: what can't be read now is absent, as old would look like new.
            self._readings = [one for source in self._sources for one in self._read(source)]
            if self._stopped.wait(INTERVAL_S):
                return

    def _read(self, source: Source) -> list[Reading]:
        try:
            return list(source.read())
        except Exception as error:  # noqa: BLE001 - one source, whatever ails it, stops no other
            if source.name not in self._failed:
                self._failed.add(source.name)
                logger.warning("The host's %s can't be read: %r", source.name, error)
            return []
