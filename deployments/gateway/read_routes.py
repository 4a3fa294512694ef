"""The gateway's routes that only read: models, health, and where to scrape metrics."""

from __future__ import annotations

import time
from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.fleet.targets import http_sd
from deployments.gateway.access.error_shapes import MODELS_PATH, is_anthropics
from deployments.gateway.anthropics_models import anthropics_model, anthropics_models
from deployments.gateway.openapi import OPENAPI_PATH, openapi_document
from deployments.gateway.parts import GatewayParts
from deployments.gateway.readiness import first_ready
from deployments.http.error_responses import error_response
from deployments.http.errors import ApiError, model_not_found
from deployments.http.metrics_endpoint import metrics_endpoint

STARTED_AT = int(time.time())
VERSION = version("pomona-serve")


def reading_routes(parts: GatewayParts) -> list[Route]:
    readings = _Readings(parts)
    return [
        Route(MODELS_PATH, readings.models),
        Route(f"{MODELS_PATH}/{{name:path}}", readings.model),
        Route(OPENAPI_PATH, readings.openapi),
        Route("/version", readings.version),
        # Clients look so whether anybody is there.
        Route("/", readings.health, methods=["HEAD"]),
        Route("/health", readings.health),
        Route("/ready", readings.ready),
        Route("/metrics", metrics_endpoint(parts.metrics.registry)),
        Route("/targets", readings.targets),
    ]


class _Readings:
    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts

    async def models(self, request: Request) -> Response:
        models = sorted(self._parts.directory.models().items())
        if is_anthropics(request.scope):
            told = [(*model, self._thinks(model[0])) for model in models]
            return JSONResponse(anthropics_models(told, STARTED_AT))
        return JSONResponse({"object": "list", "data": [_model(*item) for item in models]})

    async def model(self, request: Request) -> Response:
        name = self._parts.directory.name_of(request.path_params["name"])
        known = self._parts.directory.models()
        if name not in known:
            raise model_not_found(name, known)
        if is_anthropics(request.scope):
            thinks = self._thinks(name)
            return JSONResponse(anthropics_model(name, known[name], thinks, STARTED_AT))
        return JSONResponse(_model(name, known[name]))

    def _thinks(self, name: str) -> bool:
        return any(one.thinks for one in self._parts.directory.serving(name))

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(openapi_document())

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        if request.app.state.draining:
            return error_response(_not_ready("draining", "This gateway is draining."))
        answer = await first_ready(
            self._parts.directory.replicas,
            self._parts.connections,
            self._parts.settings.connect_timeout_s,
        )
        if answer is None:
            return error_response(_not_ready("not_ready", "No replica answers yet."))
        body: dict[str, object] = {"status": "ready"}
        if "attention" in answer:
            # Anybody may ask here: which operators serve, not the reason, which names the model.
            body["attention"] = {"path": answer["attention"]["path"]}
        return JSONResponse(body)

    async def targets(self, request: Request) -> Response:
        gateways = await self._parts.gateways()
        return JSONResponse(http_sd(gateways, self._parts.directory.replicas))


def _model(name: str, max_model_len: int) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": STARTED_AT,
        "owned_by": "pomona",
        "max_model_len": max_model_len,
    }


def _not_ready(code: str, message: str) -> ApiError:
    return ApiError(
        503,
        message,
        type="service_unavailable",
        code=code,
        headers={"Retry-After": "1"},
    )
