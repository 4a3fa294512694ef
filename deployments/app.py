"""Builds the Serve applications from the ``args:`` of a config file.

Serve replaces every replica of an application whose ``args`` have changed. So there are two ways:
``build_app`` alone, gateways and engines in one application, and ``build_app`` for the gateways
beside ``build_engines`` in an application of its own, where either changes without the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from deployments.gateway.access.watched_keys import KeySource
from deployments.observe.tracing import check_tracing
from deployments.serve.autoscaling import autoscaling_config, count_hosts
from deployments.serve.gateway import Gateway
from deployments.serve.replica import EngineReplica
from deployments.serve.response_store import StoreReplica
from deployments.serve.shipped_settings import EngineReplicaSettings, GatewayReplicaSettings
from deployments.settings import AppSettings, AutoscalingSettings, SettingsError, parse_settings

ENGINE_DEPLOYMENT = "EngineReplica"
STORE_DEPLOYMENT = "ResponseStore"
ENGINE_ROUTER = "deployments.serve.directory_router:DirectoryRouter"
GATEWAY_ROUTER = "deployments.serve.peers_router:PeersRouter"
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
        owner = f"the application {settings.gateway.engines!r}"
        _refuse(settings, owner, "engine", "autoscaling")
        engines = DeploymentHandle(ENGINE_DEPLOYMENT, settings.gateway.engines)
    return _gateways(settings).bind(
        GatewayReplicaSettings.of(settings), keys, engines, responses=_store(settings)
    )


def build_engines(args: dict[str, Any]) -> Application:
    """Engines alone, for the gateways of another application. Raises ``SettingsError``."""
    settings = parse_settings(args)
    _refuse(settings, "the gateways' application", "responses", "routing")
    check_tracing(settings.observability)
    return _engines(settings)


def _refuse(settings: AppSettings, owner: str, *sections: str) -> None:
    if wrong := [name for name in sections if name in settings.model_fields_set]:
        lines = "\n".join(f"  {name}: goes to {owner}" for name in wrong)
        raise SettingsError(f"the settings under `args:` are wrong:\n{lines}")


def _engines(settings: AppSettings) -> Application:
    place = _place(settings.replica.resource, "mlx")
    engines = serve.deployment(
        name=ENGINE_DEPLOYMENT,
        autoscaling_config=autoscaling_config(
            resource=place.resource, initial=place.num_hosts, scaling=settings.autoscaling
        ),
        max_replicas_per_node=1,
        ray_actor_options=place.actor_options(num_cpus=1, share=1),
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


def _store(settings: AppSettings) -> Application | None:
    """One for all gateways, on whichever host has room for it; None: nothing is kept."""
    if not settings.responses.max_bytes:
        return None
    store: Application = serve.deployment(
        name=STORE_DEPLOYMENT,
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        health_check_period_s=5,
        health_check_timeout_s=30,
        # What it has is lost in any case.
        graceful_shutdown_timeout_s=1,
        graceful_shutdown_wait_loop_s=1,
        logging_config=_logging_config(settings),
    )(StoreReplica).bind(settings.responses)
    return store


def _gateways(settings: AppSettings) -> serve.Deployment:
    place = _place(settings.gateway.resource, "gateway")
    deployment: serve.Deployment = serve.deployment(
        name="Gateway",
        autoscaling_config=autoscaling_config(
            resource=place.resource, initial=place.num_hosts, scaling=AutoscalingSettings()
        ),
        # One that is alone makes room for its successor while its streams run. Where there are
        # others, they take the requests, and Serve must not put two on one host.
        max_replicas_per_node=1 if place.num_hosts > 1 else 2,
        # They wait for others nearly all the time; what a host computes belongs to its engine.
        ray_actor_options=place.actor_options(num_cpus=0, share=0.5),
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        request_router_config={"request_router_class": GATEWAY_ROUTER},
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=_gateway_shutdown_s(settings),
        graceful_shutdown_wait_loop_s=1,
        logging_config=_logging_config(settings),
    )(Gateway)
    return deployment


@dataclass(frozen=True)
class _Place:
    """The hosts of a deployment: those that declare a resource, or all."""

    resource: str | None
    num_hosts: int

    def actor_options(self, *, num_cpus: int, share: float) -> dict[str, Any]:
        resources = {self.resource: share} if self.resource else {}
        return {"num_cpus": num_cpus, "resources": resources}


def _place(resource: str | None, default: str) -> _Place:
    if not ray.is_initialized():
        return _Place(resource, 1)
    if resource is None and count_hosts(default):
        resource = default
    return _Place(resource, count_hosts(resource))


def _gateway_shutdown_s(settings: AppSettings) -> float:
    stream_s = settings.replica.drain_timeout_s
    return settings.gateway.drain_notice_s + stream_s + SHUTDOWN_MARGIN_S


def _logging_config(settings: AppSettings) -> LoggingConfig:
    encoding = settings.observability.log_format.upper()
    return LoggingConfig(enable_access_log=False, encoding=encoding)
