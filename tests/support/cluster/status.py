"""How a cluster is, as anybody sees it who may ask over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster.host import Host
from tests.support.cluster.hosts import GATEWAY_PORT

PATIENCE_S = 300.0
"""For a cluster on two cores, where each of its processes takes seconds to start, and where Serve
counts on a lost host for the three minutes that Ray does."""
_client = httpx.Client(verify=False, timeout=10.0)


@dataclass(frozen=True)
class Target:
    """A gateway or an engine."""

    component: str
    replica_id: str
    node: str
    metrics_url: str


def gateway_url(edge: Host) -> str:
    return f"http://{edge.address}:{GATEWAY_PORT}"


def is_ready(url: str) -> bool:
    try:
        return _client.get(f"{url}/ready").is_success
    except httpx.TransportError:
        return False


def targets(gateway: str) -> list[Target]:
    """All that a gateway knows; none if it does not answer."""
    try:
        groups = _client.get(f"{gateway}/targets").raise_for_status()
    except httpx.HTTPError:
        return []
    return [
        Target(
            group["labels"]["component"],
            group["labels"]["replica"],
            group["labels"]["node"],
            f"http://{target}{group['labels']['__metrics_path__']}",
        )
        for group in groups.json()
        for target in group["targets"]
    ]


def requests_on(engine: Target) -> int:
    """Running and waiting."""
    text = _client.get(engine.metrics_url).raise_for_status().text
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(text)
        if family.name in ("pomona_requests_running", "pomona_requests_waiting")
        for sample in family.samples
    )


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    give_up_at = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"not within {patience_s:.0f} s: {what}")
        time.sleep(0.1)
