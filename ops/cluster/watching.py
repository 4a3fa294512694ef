"""Prometheus' folder for one cluster: whom to ask, and how many replicas there are to be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deployments.settings import AppSettings
from ops.cluster.credentials import CERTIFICATES, expiry
from ops.cluster.files import GeneratedFile
from ops.cluster.host_list import HostList
from ops.cluster.scripts import RESOURCES
from ops.cluster.serve_config import ServeConfig

SHIPPED = Path(__file__).parents[1] / "prometheus"
HEADER = (
    "# Written by `python -m ops.cluster`; the reasons stand in ops/prometheus/prometheus.yml.\n"
)
RULES = "*.rules.yml"


def prometheus_files(
    hosts: HostList, config: ServeConfig, credentials: Mapping[str, str]
) -> dict[str, GeneratedFile]:
    """Name to file, all in one folder."""
    rules = _wanted_rules(hosts, config.settings)
    if hosts.store is not None:
        # Neither Redis nor Ray's head tells of the certificates that it uses.
        rules += _expiry_rules(credentials)
    files = {
        "prometheus.yml": HEADER + _yaml(_prometheus(gateway_addresses(hosts, config))),
        "hosts.json": _json(_hosts(hosts)),
        "balancers.json": _json([{"targets": [address]} for address in hosts.balancers]),
        "heartbeats.json": _json(_heartbeats(hosts)),
        "cluster.rules.yml": HEADER + _yaml(_group(rules)),
    }
    for path in (SHIPPED / "rules").glob("*.yml"):
        files[f"{path.stem}.rules.yml"] = path.read_text(encoding="utf-8")
    return {name: GeneratedFile(text) for name, text in files.items()}


def gateway_addresses(hosts: HostList, config: ServeConfig) -> list[str]:
    """HOST:PORT of each gateway, for load balancers and Prometheus."""
    ports = sorted({one.gateway.port for one in config.gateways})
    return [f"{host.address}:{port}" for host in hosts.gateways for port in ports]


def _prometheus(gateways: Sequence[str]) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
    [job] = [job for job in config["scrape_configs"] if job["job_name"] == "pomona"]
    [example] = job["http_sd_configs"]
    job["http_sd_configs"] = [
        example | {"url": f"http://{address}/targets"} for address in gateways
    ]
    return config | {"rule_files": [RULES]}


def _hosts(hosts: HostList) -> list[dict[str, Any]]:
    """The head's Ray, and each host's. A store alone is seen through the head, which ends without
    it."""
    head = (hosts.head, hosts.head_metrics_port, "head")
    serving = [
        (host, hosts.metrics_port, ",".join(role for role in host.roles if role != "head"))
        for host in hosts.hosts
        if hosts.serves(host)
    ]
    return [
        {
            "targets": [f"{host.address}:{port}"],
            # As gateways and engines call it.
            "labels": {"host": host.name, "node": str(host.address), "roles": roles},
        }
        for host, port, roles in [head, *serving]
    ]


def _heartbeats(hosts: HostList) -> list[dict[str, Any]]:
    return [
        {"targets": [f"{host.address}:{hosts.heartbeat_port}"], "labels": {"host": host.name}}
        for host in hosts.hosts
        if hosts.has_heartbeat(host)
    ]


def _group(rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"groups": [{"name": "pomona-cluster", "rules": rules}]}


def _wanted_rules(hosts: HostList, settings: Sequence[AppSettings]) -> list[dict[str, Any]]:
    wanted = {"engine": _engines_wanted(hosts, settings), "gateway": len(hosts.gateways)}
    return [
        {
            "record": "pomona:replicas:wanted",
            "expr": f"vector({count})",
            "labels": {"component": component},
        }
        for component, count in wanted.items()
    ]


def _expiry_rules(credentials: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "record": "pomona:certificate:expiry_timestamp_seconds",
            "expr": f"vector({expiry(credentials[name]):.0f})",
            "labels": {"file": name},
        }
        for name in CERTIFICATES
    ]


def _engines_wanted(hosts: HostList, settings: Iterable[AppSettings]) -> int:
    """The fewest engines that there are when all is well: with little load, where that counts."""
    num_hosts = len(hosts.with_role("engine"))
    # Of hosts with another resource than the role's the list tells nothing.
    ours = [
        one.autoscaling
        for one in settings
        if one.gateway.engines is None and one.replica.resource in (None, RESOURCES["engine"])
    ]
    return min(
        num_hosts,
        sum(scaling.min_replicas or scaling.max_replicas or num_hosts for scaling in ours),
    )


def _yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False)


def _json(content: list[dict[str, Any]]) -> str:
    return json.dumps(content, indent=2) + "\n"
