"""Prometheus at the clients' place, as ``ops.cluster`` configures it, and its alerts."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from ops.cluster.host_list import PROMETHEUS
from tests.support.cluster.status import wait_until

ADDRESS = "127.0.0.1:9090"
WHOSE = ("host", "node", "instance", "component", "application", "deployment")
"""Labels that name what an alert is about; the first that it has is told."""
ALERTS = f"max by (alertname, alertstate, severity, {', '.join(WHOSE)}) (max_over_time(%s))"
STATES = ("", "pending", "firing")


@dataclass(frozen=True, order=True)
class Alert:
    name: str
    severity: str
    whose: str
    state: str
    """The last of ``STATES`` that it came to."""

    @property
    def pages(self) -> bool:
        return (self.severity, self.state) == ("page", "firing")

    def __str__(self) -> str:
        return f"{self.name} ({self.severity}) of {self.whose} {self.state}"


@contextmanager
def prometheus(folder: Path) -> Iterator[None]:
    """Of the cluster in ``folder``; it knows of nothing that happened before."""
    with TemporaryDirectory(dir=folder) as storage:
        process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "prometheus", "--log.level=error"),
                f"--config.file={folder / 'services' / PROMETHEUS / 'prometheus.yml'}",
                f"--storage.tsdb.path={storage}",
                f"--web.listen-address={ADDRESS}",
            ]
        )
        try:
            wait_until(_knows_that_it_serves, "Prometheus knows that the cluster serves")
            yield
        finally:
            process.kill()
            process.wait()


def alerts_since(moment: float) -> list[Alert]:
    """Those that were pending or fired since ``moment`` of ``time.monotonic``."""
    seconds = math.ceil(time.monotonic() - moment)
    found: dict[tuple[str, str, str], str] = {}
    for labels in _query(ALERTS % f'ALERTS{{alertname!="PomonaWatchdog"}}[{seconds}s]'):
        whose = next((labels[name] for name in WHOSE if name in labels), "the cluster")
        alert = (labels["alertname"], labels["severity"], whose)
        found[alert] = max(found.get(alert, ""), labels["alertstate"], key=STATES.index)
    return sorted(Alert(*alert, state) for alert, state in found.items())


def _knows_that_it_serves() -> bool:
    """While it starts it answers 503."""
    try:
        return bool(_query("pomona:cluster:served"))
    except httpx.HTTPError:
        return False


def _query(expression: str) -> list[dict[str, Any]]:
    """Labels of what it finds."""
    answer = httpx.get(f"http://{ADDRESS}/api/v1/query", params={"query": expression})
    return [one["metric"] for one in answer.raise_for_status().json()["data"]["result"]]
