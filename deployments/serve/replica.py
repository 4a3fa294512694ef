"""One engine on one host, as a Serve deployment that is reached over its own HTTP server."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from pathlib import Path
from typing import Any

import ray
from ray import serve
from starlette.datastructures import State

from deployments.backend import Backend, UnavailableError
from deployments.backend.apart import EngineProcess
from deployments.backend.cores import give_way
from deployments.fleet.directory import Replica
from deployments.http.own_host import OwnHostMiddleware
from deployments.http.server import HttpServer
from deployments.observe.host.chip import chip
from deployments.observe.host.collector import HostCollector, host_sources
from deployments.observe.logs import join_serve_log
from deployments.observe.metrics import EngineMetrics, Identity
from deployments.observe.tracing import build_tracer
from deployments.replica.app import build_replica_app
from deployments.replica.load_summary import log_load
from deployments.replica.reading import HostReader
from deployments.serve.autoscaling import LOAD, engine_load
from deployments.serve.disk import wait_for_room
from deployments.serve.garbage_collection import spare_what_is_there
from deployments.serve.replica_port import keep_replica_port_to_node
from deployments.serve.shipped_settings import EngineReplicaSettings

logger = logging.getLogger(__name__)

HAND_OVER_S = 3.0
"""Of the time that Serve gives a replica to end, what its gateways need to find another."""


class EngineReplica:
    """Starts a backend, serves it, and tells the gateways through Serve where it is.

    Serve waits for ``__init__`` as long as it takes, so loading a large model is no failure.

    An engine that hangs in a step, or can't run any, fails ``check_health``. That ends the streams
    which wait for it, so that gateways go on with them elsewhere, and has Serve put another replica
    in the place of this one: after three failures it calls ``__del__``, which drains only engines
    that are well and waits for no thread that hangs, and then kills the process.
    """

    async def __init__(self, settings: EngineReplicaSettings) -> None:  # type: ignore[misc]
        self._is_serving = False
        began = time.monotonic()
        keep_replica_port_to_node()
        self._backend = EngineProcess(settings.engine.backend)
        join_serve_log("EngineReplica", "deployments", self._backend.package)
        folder = Path(ray.get_runtime_context().get_temp_dir())
        await wait_for_room(folder)
        model = await self._backend.start(settings.engine)
        node = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        replica_id = serve.get_replica_context().replica_id.unique_id
        metrics = EngineMetrics(
            self._backend.stats,
            Identity(model=model.name, replica=replica_id, node=node),
            model.attention,
            model.revision,
        )
        self._host = HostCollector(node, host_sources(folder))
        self._host.start()
        metrics.registry.register(self._host)
        # Nobody but the gateways is told, by way of Serve's controller.
        secret = secrets.token_urlsafe(32)
        self._app = build_replica_app(
            backend=self._backend,
            model=model,
            chat_format=settings.engine.chat_format,
            secret=secret,
            registry=metrics.registry,
            on_failure=metrics.failed,
            max_body_bytes=settings.max_body_bytes,
            keep_alive_interval_s=settings.keep_alive_interval_s,
            tracer=build_tracer(settings.observability, "pomona-replica"),
            max_num_seqs=settings.engine.max_num_seqs,
            host=HostReader(lambda: self._host.readings, await asyncio.to_thread(chip)),
        )
        self._max_num_seqs = settings.engine.max_num_seqs
        self._drain_timeout_s = max(settings.replica.drain_timeout_s - HAND_OVER_S, 0.0)
        host = settings.replica.host or node
        self._server = HttpServer(
            OwnHostMiddleware(self._app, host=host), host=host, port=settings.replica.port
        )
        self._replica = Replica(
            replica_id=replica_id,
            node=node,
            url=await self._server.start(),
            model=model.name,
            max_model_len=model.max_model_len,
            secret=secret,
            revision=model.revision,
            other_names=model.other_names,
            longest_token=model.longest_token,
            thinks=self._app.state.can_think,
            start_s=time.monotonic() - began,
        )
        self._load_log = asyncio.create_task(log_load(self._backend.stats))
        self._ending = asyncio.create_task(end_with(self._backend))
        self._is_serving = True
        spare_what_is_there()
        give_way()
        logger.info("The engine for %s answers gateways at %s", model.name, self._replica.url)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Serve asks once, then pushes this to every gateway for as long as the replica runs."""
        return self._replica.metadata()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve asks every few seconds; ``HostPolicy`` gets the answers of all engines."""
        return {LOAD: engine_load(self._backend.stats(), self._max_num_seqs)}

    async def check_health(self) -> None:
        await self._backend.check_health()

    async def __del__(self) -> None:
        """Serve kills the process as soon as this returns, whatever threads still run in it. A
        replica that did not start has nothing to end."""
        if not self._is_serving:
            return
        self._load_log.cancel()
        self._ending.cancel()
        await drain(self._backend, self._app.state, self._drain_timeout_s)
        await self._backend.stop()
        await asyncio.to_thread(self._host.stop)
        await self._server.stop(timeout_s=HAND_OVER_S)


async def end_with(engine: EngineProcess) -> None:
    """Once the engine's process has ended by itself, this one does, for Serve and the gateways to
    see it at once."""
    await engine.lost.wait()
    logging.shutdown()
    os._exit(1)


async def drain(backend: Backend, state: State, timeout_s: float) -> None:
    """Let the requests that a replica has end. By now no gateway is told of it any more.

    An engine that is ill finishes nothing: its requests go on elsewhere, at once.
    """
    try:
        await backend.check_health()
    except UnavailableError as error:
        logger.warning("The engine is stopped without a drain: %s", error)
        return
    state.draining = True
    try:
        async with asyncio.timeout(timeout_s):
            await backend.drain()
    except UnavailableError as error:
        logger.warning("The engine ended while it was drained: %s", error)
    except TimeoutError:
        logger.info("Streams that outlast the drain go on at other replicas.")
