"""The gateway's HTTP interface: authenticate, validate, pick a replica, relay."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from deployments.admission import AdmissionMiddleware
from deployments.api_keys import SCOPE_KEY as API_KEY
from deployments.api_keys import ApiKey, Keys
from deployments.circuit_breaker import CircuitBreakers
from deployments.client_response import ClientResponse
from deployments.cross_origin import cross_origin
from deployments.directory import ReplicaDirectory
from deployments.disconnect import run_until_disconnect
from deployments.errors import ApiError, exception_handlers, model_not_found, shown
from deployments.limits_middleware import LimitsMiddleware, charge
from deployments.logs import log_request
from deployments.metrics import GatewayMetrics
from deployments.openapi import OPENAPI_PATH, openapi_document
from deployments.protocol import (
    CHAT_COMPLETIONS_PATH,
    COMPLETIONS_PATH,
    ChatCompletionRequest,
    CompletionRequest,
)
from deployments.rate_limits import RateLimiter
from deployments.relay import Limits, Outgoing, Relay, no_replica
from deployments.request_body import parse_body, read_body
from deployments.request_id import REQUEST_ID_HEADER, SCOPE_KEY, RequestIdMiddleware
from deployments.request_path import route_path
from deployments.routing import Router, Work, affinity_of
from deployments.settings import GatewaySettings
from deployments.stream_speed import StreamSpeed
from deployments.targets import GatewayAddress, http_sd
from deployments.tracing import NoOpTracer, Tracer, request_span

logger = logging.getLogger(__name__)

STARTED_AT = int(time.time())


@dataclass(frozen=True)
class GatewayParts:
    """What the routes work with."""

    settings: GatewaySettings
    keys: Keys
    directory: ReplicaDirectory
    router: Router
    metrics: GatewayMetrics
    session: aiohttp.ClientSession
    gateways: Callable[[], Awaitable[Sequence[GatewayAddress]]]
    """Every gateway of the application."""
    breakers: CircuitBreakers = field(default_factory=CircuitBreakers)
    limiter: RateLimiter = field(default_factory=RateLimiter)
    session_header: str | None = None
    """Requests that have the same value in it belong on one replica."""
    tracer: Tracer = field(default_factory=NoOpTracer)


def build_gateway_app(parts: GatewayParts) -> Starlette:
    """Set ``app.state.draining`` to make ``/ready`` say no, so that load balancers send their
    requests elsewhere, while everything else goes on."""
    limits = Limits(
        max_attempts=parts.settings.max_attempts,
        connect_timeout_s=parts.settings.connect_timeout_s,
        stall_timeout_s=parts.settings.stall_timeout_s,
        request_timeout_s=parts.settings.request_timeout_s,
        resume_timeout_s=parts.settings.resume_timeout_s,
    )

    def count(error: ApiError) -> None:
        parts.metrics.failed("", error.type)

    async def generate(request: Request) -> Response:
        arrived = time.perf_counter()
        outgoing = await _accept(request, parts)
        return _RelayResponse(outgoing, parts, limits, arrived)

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(*item) for item in _models(parts)]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        known = dict(_models(parts))
        if name not in known:
            raise model_not_found(name)
        return JSONResponse(_model(name, known[name]))

    async def openapi(request: Request) -> Response:
        return JSONResponse(openapi_document())

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        if request.app.state.draining:
            return _not_ready("draining", "This gateway is draining.").response()
        answer = await _first_ready_replica(parts)
        if answer is None:
            return _not_ready("not_ready", "No replica answers yet.").response()
        body: dict[str, object] = {"status": "ready"}
        if "attention" in answer:
            # Anybody may ask here: which operators serve, not the reason, which names the model.
            body["attention"] = {"path": answer["attention"]["path"]}
        return JSONResponse(body)

    async def targets(request: Request) -> Response:
        return JSONResponse(http_sd(await parts.gateways(), parts.directory.replicas))

    app = Starlette(
        routes=[
            Route(CHAT_COMPLETIONS_PATH, generate, methods=["POST"]),
            Route(COMPLETIONS_PATH, generate, methods=["POST"]),
            Route("/v1/models", models),
            Route(OPENAPI_PATH, openapi),
            Route("/v1/models/{name:path}", model),
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics_endpoint(parts.metrics.registry)),
            Route("/targets", targets),
        ],
        middleware=[
            Middleware(RequestIdMiddleware),
            *cross_origin(parts.settings.allowed_origins),
            Middleware(
                AdmissionMiddleware,
                keys=parts.keys,
                allowed_origins=parts.settings.allowed_origins,
                on_refused=count,
            ),
            Middleware(LimitsMiddleware, limiter=parts.limiter, on_refused=count),
        ],
        exception_handlers=exception_handlers(count),
    )
    app.router.redirect_slashes = False
    app.state.draining = False
    return app


def metrics_endpoint(registry: CollectorRegistry) -> Callable[[Request], Awaitable[Response]]:
    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return metrics


async def _accept(request: Request, parts: GatewayParts) -> Outgoing:
    """Raises ``ApiError`` for whatever no replica needs to see."""
    path = route_path(request.scope)
    _check_request_id(request)
    try:
        body = await read_body(request, parts.settings.max_body_bytes)
    except ClientDisconnect as error:
        raise ApiError(400, "The connection closed before the end of the body.") from error
    parsed = await parse_body(path, body)
    if parts.settings.log_prompts:
        # JSON escapes the line breaks of texts; others would forge lines.
        text = body.decode().replace("\n", " ").replace("\r", " ")
        logger.info("request_id=%s body=%s", request.scope[SCOPE_KEY], text)
    if parsed.priority and not parts.settings.allow_priority:
        raise ApiError(
            400,
            "priority is not allowed here, since any client could pass all others; leave it out, "
            "or have gateway.allow_priority set.",
            param="priority",
        )
    if not parts.directory.serving(parsed.model):
        # While there is no replica at all, nobody knows which models there will be.
        starting = not parts.directory.replicas
        raise no_replica(parsed.model) if starting else model_not_found(parsed.model)
    charge(
        request.scope,
        prompt_tokens=parsed.prompt_size_estimate(),
        max_new_tokens=parsed.max_new_tokens_estimate(),
    )
    key: ApiKey | None = request.scope.get(API_KEY)
    tenant = key.tenant if key and parts.settings.isolate_tenants else ""
    return Outgoing(
        path=path,
        body=body,
        stream=parsed.stream,
        request_id=request.scope[SCOPE_KEY],
        work=_work(parsed, request, parts.session_header, tenant),
        tenant=tenant,
        priority=key.priority if key else 0,
    )


def _work(
    parsed: ChatCompletionRequest | CompletionRequest,
    request: Request,
    session_header: str | None,
    tenant: str,
) -> Work:
    session = request.headers.get(session_header) if session_header else None
    return Work(
        model=parsed.model,
        tokens=parsed.prompt_size_estimate() + parsed.max_new_tokens_estimate(),
        affinity=affinity_of(parsed, session=session, tenant=tenant),
        num_sequences=parsed.num_sequences,
    )


def _check_request_id(request: Request) -> None:
    """Serve returns whatever id was sent; what the log calls the request must be the same."""
    given = request.headers.get(REQUEST_ID_HEADER)
    if given is not None and given != request.scope[SCOPE_KEY]:
        raise ApiError(
            400,
            f"{REQUEST_ID_HEADER} must be 1 to 128 letters, digits or characters of ._:/=+-, "
            f"not {shown(given)}.",
            param=REQUEST_ID_HEADER,
        )


def _not_ready(code: str, message: str) -> ApiError:
    return ApiError(
        503,
        message,
        type="service_unavailable",
        code=code,
        headers={"Retry-After": "1"},
    )


class _RelayResponse(Response):
    """Runs the relay as the response, then accounts for it."""

    def __init__(
        self, outgoing: Outgoing, parts: GatewayParts, limits: Limits, arrived: float
    ) -> None:
        self._outgoing = outgoing
        self._parts = parts
        self._arrived = arrived
        self._relay = Relay(
            outgoing,
            directory=parts.directory,
            router=parts.router,
            breakers=parts.breakers,
            session=parts.session,
            limits=limits,
            on_first_content=self._first_content,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        speed = StreamSpeed(send)
        client = ClientResponse(speed.send)
        with request_span(
            self._parts.tracer, f"POST {self._outgoing.path}", scope, self._outgoing.request_id
        ) as span:
            completed = await run_until_disconnect(receive, self._relay.run(client))
            span.set_attributes(
                {
                    "http.response.status_code": client.status,
                    "pomona.model": self._outgoing.work.model,
                    "pomona.replica": self._relay.replica_id,
                    "pomona.resumed": self._relay.num_resumed,
                    "pomona.completed": completed,
                }
            )
        self._account(scope, client, speed, completed)

    def _account(
        self, scope: Scope, client: ClientResponse, speed: StreamSpeed, completed: bool
    ) -> None:
        elapsed = time.perf_counter() - self._arrived
        work, model = self._outgoing.work, self._outgoing.work.model
        if not self._relay.num_resumed:
            # Otherwise the speed is that of several replicas and of the way between them.
            replica_id = self._relay.replica_id
            self._parts.router.streamed(work, replica_id, speed.num_events, speed.seconds)
        key: ApiKey | None = scope.get(API_KEY)
        if client.error is not None:
            self._parts.metrics.failed(model, client.error.type)
        elif completed and client.status == 200 and not client.has_error:
            self._parts.metrics.completed(model, elapsed)
        log_request(
            logger,
            f"POST {self._outgoing.path} {client.status if completed else 'client gone'}",
            model=model,
            key=key.name if key else "-",
            # Serve has its own idea of a field `replica`: this gateway.
            served_by=self._relay.replica_id,
            resumed=self._relay.num_resumed,
            seconds=round(elapsed, 3),
            request_id=self._outgoing.request_id,
        )

    def _first_content(self) -> None:
        if self._outgoing.stream:
            elapsed = time.perf_counter() - self._arrived
            self._parts.metrics.first_content(self._outgoing.work.model, elapsed)


def _models(parts: GatewayParts) -> list[tuple[str, int]]:
    return sorted(parts.directory.models().items())


def _model(name: str, max_model_len: int) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": STARTED_AT,
        "owned_by": "pomona",
        "max_model_len": max_model_len,
    }


async def _first_ready_replica(parts: GatewayParts) -> dict[str, Any] | None:
    """What the first replica that is ready answers to ``/ready``."""
    timeout = aiohttp.ClientTimeout(total=parts.settings.connect_timeout_s)
    for replica in parts.directory.replicas:
        try:
            async with parts.session.get(replica.url + "/ready", timeout=timeout) as response:
                if response.status == 200:
                    answer: dict[str, Any] = await response.json()
                    return answer
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("Replica %s does not answer: %s", replica.replica_id, error)
    return None
