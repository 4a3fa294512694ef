"""The gateway's deployment, one on each host: Serve's side of ``gateway/``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from prometheus_client import CollectorRegistry
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.routing import Route

from deployments.backend.cores import give_way
from deployments.fleet.directory import process_directory
from deployments.fleet.peers import process_peers
from deployments.fleet.targets import GatewayAddress
from deployments.gateway.access.rate_limits import RateLimiter
from deployments.gateway.access.watched_keys import KeySource
from deployments.gateway.app import GatewayParts, build_gateway_app
from deployments.gateway.port import PATIENCE_S, GatewayPort
from deployments.gateway.read_routes import VERSION
from deployments.gateway.relay.connections import ReplicaConnections
from deployments.gateway.replicas.table import ReplicaTable
from deployments.gateway.responses.shared import SharedStore
from deployments.gateway.routing import build_router
from deployments.gateway.watch.watch import FleetWatch
from deployments.http.bounded_protocol import ClientTimeouts
from deployments.http.metrics_endpoint import metrics_endpoint
from deployments.http.own_host import OwnHostMiddleware
from deployments.http.server import HttpServer
from deployments.observe.host.collector import HostCollector, host_sources
from deployments.observe.logs import join_serve_log
from deployments.observe.metrics import GatewayMetrics
from deployments.observe.tracing import build_tracer
from deployments.serve.disk import wait_for_room
from deployments.serve.ending import application_ends
from deployments.serve.garbage_collection import spare_what_is_there
from deployments.serve.open_port import open_port
from deployments.serve.replica_port import keep_replica_port_to_node
from deployments.serve.response_store import StoreHandle
from deployments.serve.resumption_key import resumption_key
from deployments.serve.shipped_settings import GatewayReplicaSettings

logger = logging.getLogger(__name__)

ENGINES_PATIENCE_S = 5.0
LAST_REQUEST_S = 2.0
"""For what load balancers have just sent on idle connections, when a gateway stops."""


class Gateway:
    """Relays requests that come to its own port to the replicas behind ``engines``.

    No request passes through Serve: ``engines`` carries none, and Serve's proxy finds nothing to
    call here.
    """

    async def __init__(  # type: ignore[misc]
        self,
        settings: GatewayReplicaSettings,
        keys: KeySource,
        engines: DeploymentHandle[Any],
        responses: DeploymentHandle[Any] | None = None,
    ) -> None:
        """``responses``: the store that they are kept in."""
        self._is_serving = False
        keep_replica_port_to_node()
        join_serve_log("Gateway", "deployments")
        context = serve.get_replica_context()
        self._settings = settings.gateway
        self._routing = settings.routing
        self._drain_timeout_s = settings.drain_timeout_s
        self._tracer = build_tracer(settings.observability, "pomona-gateway")
        self._keys = keys.keys()
        share = self._settings.limits_scope == "cluster"
        self._limiter = RateLimiter(num_gateways=_num_gateways if share else lambda: 1)
        self._application = context.app_name
        self._replica_id = context.replica_id.unique_id
        self._node = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        # A handle learns of replicas from its first use on; ``DirectoryRouter`` listens in it.
        self._engines = engines.options(method_name="check_health")
        self._responses = StoreHandle(responses) if responses is not None else None
        # In this one ``PeersRouter`` does.
        peers = serve.get_deployment_handle(context.deployment, context.app_name)
        self._peers = peers.options(method_name="check_health")
        self._resumption_key = resumption_key(context.app_name)
        self._folder = Path(ray.get_runtime_context().get_temp_dir())
        self._host = HostCollector(self._node, host_sources(self._folder))
        self._reading: asyncio.Task[None] | None = None
        """What the store of responses has, for the metrics."""
        self._watching: asyncio.Task[None] | None = None
        if not self._keys:
            logger.warning("No API key is configured: only clients on the same machine are served.")
        await self._start()

    async def _start(self) -> None:
        await wait_for_room(self._folder)
        metrics = GatewayMetrics(replica=self._replica_id, node=self._node)
        metrics.registry.register(self._host)
        self._host.start()
        self._connections = ReplicaConnections()
        metrics_host = self._settings.metrics_host or self._node
        self._metrics_server = HttpServer(
            OwnHostMiddleware(_metrics_app(metrics.registry), host=metrics_host),
            host=metrics_host,
            port=self._settings.metrics_port,
        )
        directory = process_directory()
        responses = None
        if self._responses is not None:
            responses = SharedStore(self._responses, metrics.stored_responses)
            self._reading = asyncio.create_task(responses.read_for_ever())
        replicas = ReplicaTable(directory, load_half_life_s=self._routing.load_half_life_s)
        watch = None
        if self._settings.page:
            watch = FleetWatch(
                replicas,
                self._connections,
                _all_gateways,
                gateway=self._replica_id,
                version=VERSION,
            )
            self._watching = asyncio.create_task(watch.run_for_ever())
        app = build_gateway_app(
            GatewayParts(
                settings=self._settings,
                keys=self._keys,
                limiter=self._limiter,
                replicas=replicas,
                router=build_router(self._routing),
                metrics=metrics,
                connections=self._connections,
                gateways=_all_gateways,
                resumption_key=self._resumption_key,
                session_header=self._routing.session_header,
                responses=responses,
                watch=watch,
                tracer=self._tracer,
            )
        )
        # Nobody asks a port for its readiness before each request: this one opens ready, unless
        # there is no engine at all.
        await directory.wait_for_any(ENGINES_PATIENCE_S)
        patience_s = self._settings.client_timeout_s
        self._port = GatewayPort(
            app,
            node=self._node,
            host=self._settings.host,
            port=self._settings.port,
            is_alone=lambda: not process_peers().gateways,
            timeouts=ClientTimeouts(
                receive_s=patience_s, send_s=patience_s, last_request_s=LAST_REQUEST_S
            ),
        )
        logger.info("Clients are served at %s", await open_port(self._port))
        # After that, since a predecessor which has handed over the one port gives up the other.
        self._metrics_url = await self._metrics_server.start(patience_s=PATIENCE_S)
        self._is_serving = True
        spare_what_is_there()
        give_way()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Serve asks once, then pushes this to every gateway for as long as this one runs."""
        return asdict(GatewayAddress(self._replica_id, self._node, self._metrics_url))

    async def check_health(self) -> None:
        """Serve replaces a gateway for which this raises, or does not return as its event loop
        hangs."""
        self._port.check_health()
        self._metrics_server.check_health()

    async def __del__(self) -> None:
        """Serve knows nothing of the requests here. A gateway that did not start has nothing to
        end."""
        if not self._is_serving:
            return
        try:
            is_end = await application_ends(self._application)
            await self._port.leave(notice_s=0.0 if is_end else self._settings.drain_notice_s)
        finally:
            self._stop_watching()
            # A successor may want both ports.
            await asyncio.gather(
                self._metrics_server.stop(), self._port.close(timeout_s=self._drain_timeout_s)
            )
        self._connections.close()
        if self._reading is not None:
            self._reading.cancel()
        await asyncio.to_thread(self._host.stop)

    def _stop_watching(self) -> None:
        """Ends the streams of those who look, for whom nobody has to wait."""
        if self._watching is not None:
            self._watching.cancel()


async def _all_gateways() -> Sequence[GatewayAddress]:
    return process_peers().gateways


def _num_gateways() -> int:
    return max(len(process_peers().gateways), 1)


def _metrics_app(registry: CollectorRegistry) -> Starlette:
    return Starlette(routes=[Route("/metrics", metrics_endpoint(registry))])
