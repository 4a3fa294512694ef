"""Readings as Prometheus metrics, `pomona_host_` and one label `node`."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.host import linux, macos
from deployments.host.reading import METRICS, Reading, common_readings

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0


def host_readings() -> list[Reading]:
    """Everything that this platform tells."""
    found = list(common_readings())
    if sys.platform == "linux":
        found += linux.readings()
    elif sys.platform == "darwin":
        found += macos.readings()
    return found


class HostCollector(Collector):
    """Reads in a thread of its own: some of it runs commands, and a scrape must not wait."""

    def __init__(self, node: str, read: Callable[[], list[Reading]] = host_readings) -> None:
        self._node = node
        self._read = read
        self._readings: list[Reading] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

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
            try:
                self._readings = self._read()
            except (OSError, subprocess.SubprocessError) as error:
                # Old readings would look like new ones.
                self._readings = []
                logger.warning("The host can't be read: %s", error)
            if self._stopped.wait(INTERVAL_S):
                return
