"""Service discovery for Prometheus, in the form of its `http_sd`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from deployments.fleet.directory import Replica


@dataclass(frozen=True)
class GatewayAddress:
    """Where one gateway's own metrics server is."""

    replica_id: str
    node: str
    url: str


def http_sd(
    gateways: Iterable[GatewayAddress], replicas: Iterable[Replica]
) -> list[dict[str, Any]]:
    """One group a process. Scrape with `honor_labels: true`: samples carry the same labels."""
    groups = [
        _group(gateway.url, component="gateway", replica=gateway.replica_id, node=gateway.node)
        for gateway in gateways
    ]
    groups += [
        _group(
            replica.url,
            component="engine",
            model=replica.model,
            replica=replica.replica_id,
            node=replica.node,
        )
        for replica in replicas
    ]
    return groups


def _group(url: str, **labels: str) -> dict[str, Any]:
    return {
        "targets": [urlsplit(url).netloc],
        "labels": {"__metrics_path__": "/metrics", **labels},
    }
