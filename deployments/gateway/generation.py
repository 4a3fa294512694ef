"""The gateway's generation routes: validate a request, relay it, account for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from deployments.fleet.directory import Replica
from deployments.gateway.access.api_keys import SCOPE_KEY as API_KEY
from deployments.gateway.access.api_keys import ApiKey
from deployments.gateway.access.limits_middleware import charge, meter
from deployments.gateway.outcomes import outcome_of
from deployments.gateway.parts import GatewayParts
from deployments.gateway.relay.client_response import ClientResponse
from deployments.gateway.relay.relay import Limits, Outgoing, Relay, no_replica
from deployments.gateway.routing import Work, affinity_of
from deployments.http.disconnect import run_until_disconnect
from deployments.http.errors import ApiError, model_not_found, shown
from deployments.http.request_body import read_body
from deployments.http.request_id import REQUEST_ID_HEADER, SCOPE_KEY
from deployments.http.request_path import route_path
from deployments.observe.logs import log_request
from deployments.observe.metrics import GatewayMetrics
from deployments.observe.tracing import request_span
from deployments.protocol import (
    CHAT_COMPLETIONS_PATH,
    COMPLETIONS_PATH,
    ChatCompletionRequest,
    CompletionRequest,
    parse_body,
)
from deployments.settings import GatewaySettings

logger = logging.getLogger(__name__)


def generation_routes(parts: GatewayParts) -> list[Route]:
    limits = _limits(parts.settings)

    async def generate(request: Request) -> Response:
        arrived = time.perf_counter()
        return _RelayResponse(await _accept(request, parts), parts, limits, arrived)

    return [
        Route(path, generate, methods=["POST"])
        for path in (CHAT_COMPLETIONS_PATH, COMPLETIONS_PATH)
    ]


def _limits(settings: GatewaySettings) -> Limits:
    return Limits(
        max_attempts=settings.max_attempts,
        connect_timeout_s=settings.connect_timeout_s,
        stall_timeout_s=settings.stall_timeout_s,
        request_timeout_s=settings.request_timeout_s,
        resume_timeout_s=settings.resume_timeout_s,
    )


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
    serving = _allowed(parsed, parts)
    if parsed.model != (name := serving[0].model):
        parsed = parsed.model_copy(update={"model": name})
    outcome_of(request.scope).model = name
    key: ApiKey | None = request.scope.get(API_KEY)
    tenant = key.tenant if key and parts.settings.isolate_tenants else ""
    work = _work(parsed, request, parts.session_header, tenant, serving)
    charge(request.scope, work.tokens)
    return Outgoing(
        path=path,
        body=body,
        stream=parsed.stream,
        request_id=request.scope[SCOPE_KEY],
        work=work,
        prompt_tokens=min(parsed.prompt_size_estimate(), work.tokens),
        tenant=tenant,
        priority=key.priority if key else 0,
        begins_anew=not parsed.stream and parsed.num_logprobs is not None,
    )


def _allowed(
    parsed: ChatCompletionRequest | CompletionRequest, parts: GatewayParts
) -> Sequence[Replica]:
    """The replicas that serve it, or did until they fell."""
    if parsed.priority and not parts.settings.allow_priority:
        raise ApiError(
            400,
            "priority is not allowed here, since any client could pass all others; leave it out, "
            "or have gateway.allow_priority set.",
            param="priority",
        )
    if serving := parts.directory.lately_serving(parts.directory.name_of(parsed.model)):
        return serving
    # While there is no replica at all, nobody knows which models there will be.
    starting = not parts.directory.replicas
    raise no_replica(parsed.model) if starting else model_not_found(parsed.model)


def _work(
    parsed: ChatCompletionRequest | CompletionRequest,
    request: Request,
    session_header: str | None,
    tenant: str,
    serving: Sequence[Replica],
) -> Work:
    session = request.headers.get(session_header) if session_header else None
    tokens = parsed.prompt_size_estimate() + parsed.max_new_tokens_estimate()
    # Clients ask for as much as they like; no sequence gets longer than the context.
    longest = max(replica.max_model_len for replica in serving)
    return Work(
        model=parsed.model,
        tokens=min(tokens, parsed.num_sequences * longest),
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
            full=parts.full,
            quarantine=parts.quarantine,
            connections=parts.connections,
            limits=limits,
            on_first_content=partial(_first_content, outgoing, parts.metrics, arrived),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = ClientResponse(send)
        meter(scope, lambda: self._tokens_used(client))
        with request_span(
            self._parts.tracer, f"POST {self._outgoing.path}", scope, self._outgoing.request_id
        ) as span:
            completed = await run_until_disconnect(
                receive, self._relay.run(client), is_sent=lambda: client.is_complete
            )
            span.set_attributes(
                {
                    "http.response.status_code": client.status,
                    "pomona.model": self._outgoing.work.model,
                    "pomona.replica": self._relay.replica_id,
                    "pomona.resumed": self._relay.num_resumed,
                    "pomona.completed": completed,
                }
            )
        self._account(scope, client, completed)

    def _tokens_used(self, client: ClientResponse) -> int:
        """What the engine has done, whoever has seen it; what failed before it began is free."""
        prompt, completion = self._relay.prompt_tokens, self._relay.completion_tokens
        failed = client.error is not None or client.has_error or client.status >= 400
        if failed and not prompt and not completion:
            return 0
        return (prompt or self._outgoing.prompt_tokens) + completion

    def _account(self, scope: Scope, client: ClientResponse, completed: bool) -> None:
        outcome_of(scope).status = client.final_status
        elapsed = time.perf_counter() - self._arrived
        work, model = self._outgoing.work, self._outgoing.work.model
        if not self._relay.was_interrupted:
            # Otherwise the speed is that of several replicas and of the way between them.
            speed, replica_id = client.speed, self._relay.replica_id
            self._parts.router.streamed(work, replica_id, speed.num_events, speed.seconds)
        self._parts.metrics.resumed(model, self._relay.num_resumed)
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


def _first_content(
    outgoing: Outgoing, metrics: GatewayMetrics, arrived: float, replica_s: float
) -> None:
    elapsed = time.perf_counter() - arrived
    metrics.first_content(outgoing.work.model, elapsed, overhead_s=elapsed - replica_s)
