"""Builds the Serve application from the ``args:`` of a config file."""

from __future__ import annotations

import secrets
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.schema import LoggingConfig

from deployments.gateway import Gateway
from deployments.replica import EngineReplica
from deployments.settings import parse_settings
from deployments.tracing import check_tracing
from deployments.watched_keys import KeySource

RESOURCE = "mlx"
ENGINE_ROUTER = "deployments.directory_router:DirectoryRouter"
# Admission is bounded by the engines' queues; Serve's own limit must never be the one that bites.
MAX_ONGOING_REQUESTS = 10_000


def build_app(args: dict[str, Any]) -> Application:
    """A gateway on every host, in front of an engine on every host that is to have one.

    Raises ``SettingsError`` with a line for each mistake in ``args``.
    """
    settings = parse_settings(args)
    keys = KeySource.of(settings.gateway)
    # What is bound is pickled into the cluster's store: digests will do.
    settings = settings.without_secrets()
    check_tracing(settings.observability)
    logging_config = LoggingConfig(
        enable_access_log=False, encoding=settings.observability.log_format.upper()
    )
    hosts, hosts_with_resource = _count_hosts()
    engine_options: dict[str, Any] = {"num_cpus": 1}
    if hosts_with_resource:
        engine_options["resources"] = {RESOURCE: 1}
    engines = serve.deployment(
        name="EngineReplica",
        num_replicas=settings.replica.num_replicas or hosts_with_resource or hosts,
        max_replicas_per_node=1,
        ray_actor_options=engine_options,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        request_router_config={"request_router_class": ENGINE_ROUTER},
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=settings.replica.drain_timeout_s,
        graceful_shutdown_wait_loop_s=1,
        logging_config=logging_config,
    )(EngineReplica)
    num_gateways = settings.gateway.num_replicas or hosts
    gateway = serve.deployment(
        name="Gateway",
        num_replicas=num_gateways,
        max_replicas_per_node=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=settings.replica.drain_timeout_s,
        graceful_shutdown_wait_loop_s=1,
        logging_config=logging_config,
    )(Gateway)
    return gateway.bind(
        settings,
        keys,
        num_gateways,
        engines.bind(settings, secrets.token_urlsafe(32)),
    )


def _count_hosts() -> tuple[int, int]:
    """Hosts in the cluster, and those that declare the resource."""
    if not ray.is_initialized():
        return 1, 0
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    return len(resources), sum(declared.get(RESOURCE, 0) >= 1 for declared in resources)
