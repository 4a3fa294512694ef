"""The replica's routes that only read: health, and its metrics."""

from __future__ import annotations

from dataclasses import asdict

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.backend import Backend, ModelInfo, UnavailableError
from deployments.http.metrics_endpoint import metrics_endpoint


def reading_routes(backend: Backend, model: ModelInfo, registry: CollectorRegistry) -> list[Route]:
    readings = _Readings(backend, model)
    return [
        Route("/health", readings.health),
        Route("/ready", readings.ready),
        Route("/metrics", metrics_endpoint(registry)),
    ]


class _Readings:
    def __init__(self, backend: Backend, model: ModelInfo) -> None:
        self._backend = backend
        self._model = model

    async def health(self, request: Request) -> Response:
        await self._backend.check_health()
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        if request.app.state.draining:
            raise UnavailableError("The replica is draining.")
        await self._backend.check_health()
        body: dict[str, object] = {
            "status": "ready",
            "model": self._model.name,
            "max_model_len": self._model.max_model_len,
        }
        if self._model.attention is not None:
            body["attention"] = asdict(self._model.attention)
        return JSONResponse(body)
