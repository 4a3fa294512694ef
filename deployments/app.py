"""Builds the Serve applications from the ``args:`` of a config file.

Serve replaces every replica of an application whose ``args`` have changed. So there are two ways:
``build_app`` alone, gateways and engines in one application, and ``build_app`` for the gateways
beside ``build_engines`` in an application of its own, where either changes without the other.
"""

from __future__ import annotations

from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from deployments.bound_settings import EngineReplicaSettings, GatewayReplicaSettings
from deployments.gateway import Gateway
from deployments.replica import EngineReplica
from deployments.settings import AppSettings, SettingsError, parse_settings
from deployments.tracing import check_tracing
from deployments.watched_keys import KeySource

ENGINE_RESOURCE = "mlx"
GATEWAY_RESOURCE = "gateway"
ENGINE_DEPLOYMENT = "EngineReplica"
ENGINE_ROUTER = "deployments.directory_router:DirectoryRouter"
GATEWAY_ROUTER = "deployments.peers_router:PeersRouter"
# Admission is bounded by the engines' queues; Serve's own limit must never be the one that bites.
MAX_ONGOING_REQUESTS = 10_000
# What a gateway needs to end, besides the time that its streams get.
SHUTDOWN_MARGIN_S = 10.0


def build_app(args: dict[str, Any]) -> Application:
    """Gateways, in front of engines: those of the application ``gateway.engines``, or else its own.

    Raises ``SettingsError`` with a line for each mistake in ``args``.
    """
    settings = parse_settings(args)
    keys = KeySource.of(settings.gateway)
    check_tracing(settings.observability)
    engines: Application | DeploymentHandle[Any]
    if settings.gateway.engines is None:
        engines = _engines(settings)
    else:
        _refuse(settings, "engine", f"the application {settings.gateway.engines!r}")
        engines = DeploymentHandle(ENGINE_DEPLOYMENT, settings.gateway.engines)
    return _gateways(settings).bind(GatewayReplicaSettings.of(settings), keys, engines)


def build_engines(args: dict[str, Any]) -> Application:
    """Engines alone, for the gateways of another application. Raises ``SettingsError``."""
    settings = parse_settings(args)
    _refuse(settings, "routing", "the gateways' application")
    check_tracing(settings.observability)
    return _engines(settings)


def _refuse(settings: AppSettings, section: str, owner: str) -> None:
    if section in settings.model_fields_set:
        raise SettingsError(f"the settings under `args:` are wrong:\n  {section}: goes to {owner}")


def _engines(settings: AppSettings) -> Application:
    hosts, hosts_with_resource = _count_hosts(ENGINE_RESOURCE)
    options: dict[str, Any] = {"num_cpus": 1}
    if hosts_with_resource:
        options["resources"] = {ENGINE_RESOURCE: 1}
    engines = serve.deployment(
        name=ENGINE_DEPLOYMENT,
        num_replicas=settings.replica.num_replicas or hosts_with_resource or hosts,
        max_replicas_per_node=1,
        ray_actor_options=options,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        request_router_config={"request_router_class": ENGINE_ROUTER},
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=settings.replica.drain_timeout_s,
        graceful_shutdown_wait_loop_s=1,
        logging_config=_logging_config(settings),
    )(EngineReplica)
    bound: Application = engines.bind(EngineReplicaSettings.of(settings))
    return bound


def _gateways(settings: AppSettings) -> serve.Deployment:
    hosts, hosts_with_resource = _count_hosts(GATEWAY_RESOURCE)
    # They wait for others nearly all the time; what a host computes belongs to its engine.
    options: dict[str, Any] = {"num_cpus": 0}
    if hosts_with_resource:
        # A half, since a successor may start before its predecessor has ended.
        options["resources"] = {GATEWAY_RESOURCE: 0.5}
    num_gateways = settings.gateway.num_replicas or hosts_with_resource or hosts
    deployment: serve.Deployment = serve.deployment(
        name="Gateway",
        num_replicas=num_gateways,
        # One that is alone makes room for its successor while its streams run. Where there are
        # others, they take the requests, and Serve must not put two on one host.
        max_replicas_per_node=1 if num_gateways > 1 else 2,
        ray_actor_options=options,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        request_router_config={"request_router_class": GATEWAY_ROUTER},
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=_gateway_shutdown_s(settings),
        graceful_shutdown_wait_loop_s=1,
        logging_config=_logging_config(settings),
    )(Gateway)
    return deployment


def _gateway_shutdown_s(settings: AppSettings) -> float:
    notice_s = settings.gateway.drain_notice_s if settings.gateway.port is not None else 0.0
    return notice_s + settings.replica.drain_timeout_s + SHUTDOWN_MARGIN_S


def _logging_config(settings: AppSettings) -> LoggingConfig:
    encoding = settings.observability.log_format.upper()
    return LoggingConfig(enable_access_log=False, encoding=encoding)


def _count_hosts(resource: str) -> tuple[int, int]:
    """Hosts in the cluster, and those that declare ``resource``."""
    if not ray.is_initialized():
        return 1, 0
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    return len(resources), sum(declared.get(resource, 0) >= 1 for declared in resources)
