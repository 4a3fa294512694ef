"""The gateway's generation routes: validate a request, relay it, account for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from deployments.fleet.directory import Replica
from deployments.gateway.accepting import check_priority, log_body, serving, whole_body
from deployments.gateway.access.api_keys import SCOPE_KEY as API_KEY
from deployments.gateway.access.api_keys import ApiKey
from deployments.gateway.access.limits_middleware import meter, reserve
from deployments.gateway.access.reservation import Reservation
from deployments.gateway.metering import RequestMeter
from deployments.gateway.outcomes import outcome_of
from deployments.gateway.parts import GatewayParts
from deployments.gateway.refusals_log import record_refusal
from deployments.gateway.relay.client_response import ClientResponse
from deployments.gateway.relay.failures import told_error
from deployments.gateway.relay.relay import relay
from deployments.gateway.relay.request import Outgoing, RelayedRequest
from deployments.gateway.relay.resumable import ResumableReader
from deployments.gateway.resumption import resumption_of
from deployments.gateway.routing import Work, affinity_of
from deployments.http.disconnect import run_until_disconnect
from deployments.http.errors import ApiError
from deployments.http.request_id import SCOPE_KEY
from deployments.http.request_path import route_path
from deployments.observe.logs import log_request
from deployments.observe.tracing import Tracer, request_span
from deployments.protocol import GENERATION_PATHS, GenerationForm, ParsedRequest, parse_body
from deployments.wire.envelope import Envelope
from deployments.wire.resumption import Resumption

logger = logging.getLogger(__name__)


def generation_routes(parts: GatewayParts) -> list[Route]:
    return [Route(path, _Generation(parts), methods=["POST"]) for path in GENERATION_PATHS]


class _Generation:
    """An application of its own: around a function, Starlette would wrap each chunk once more."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = time.perf_counter()
        outgoing, reservation = await _accept(Request(scope, receive), self._parts)
        request = RelayedRequest(
            outgoing,
            self._parts,
            ClientResponse(send, outgoing.stream_form, outgoing.request_id),
            arrived,
        )
        meter(scope, RequestMeter(request, reservation))
        await answer(request, self._parts.tracer, scope, receive)


async def _accept(request: Request, parts: GatewayParts) -> tuple[Outgoing, Reservation | None]:
    """With what is reserved of its key's tokens, if they are counted. Raises ``ApiError`` for
    whatever no replica needs to see."""
    path = route_path(request.scope)
    body = await whole_body(request, parts.settings.max_body_bytes)
    parsed = await parse_body(path, body)
    form = parsed.form
    log_body(request, body, parts)
    replicas = _allowed(form, parts)
    if form.model != (name := replicas[0].model):
        form = form.model_copy(update={"model": name})
    outcome_of(request.scope).model = name
    envelope = envelope_for(request.scope, parts)
    resumption = resumption_of(request, body, form.stream, envelope, parts)
    work = _work(form, request, parts.session_header, envelope.cache_tenant, replicas)
    reservation = reserve(
        request.scope,
        form,
        max_tokens=resumption.max_tokens if resumption else None,
        max_model_len=max(replica.max_model_len for replica in replicas),
    )
    if reservation is not None:
        envelope = replace(
            envelope,
            max_tokens=reservation.answer_bound,
            max_prompt_tokens=reservation.max_prompt_tokens,
        )
    resumption = resumption and resumption.bounded(envelope)
    outgoing = Outgoing(
        path=path,
        body=body,
        stream=form.stream,
        stream_form=parsed.stream_form,
        request_id=request.scope[SCOPE_KEY],
        work=work,
        envelope=resumption.address(envelope) if resumption else envelope,
        begins_anew=not form.stream and form.has_logprobs,
        resumable=_resumable(resumption, parsed, parts),
    )
    return outgoing, reservation


def _resumable(
    resumption: Resumption | None, parsed: ParsedRequest, parts: GatewayParts
) -> ResumableReader | None:
    if resumption is None:
        return None
    return ResumableReader(resumption, parts.resumption_key, parsed.stream_form.last_event)


def envelope_for(scope: Scope, parts: GatewayParts) -> Envelope:
    """Of a new answer."""
    key: ApiKey | None = scope.get(API_KEY)
    if key is None:
        return Envelope.seal()
    return Envelope.seal(
        tenant=key.tenant,
        weight=key.weight,
        is_isolated=parts.settings.isolate_tenants,
        priority=key.priority,
    )


def _allowed(parsed: GenerationForm, parts: GatewayParts) -> Sequence[Replica]:
    """The replicas that serve it, or did until they fell."""
    check_priority(parsed.priority, parts)
    most, num_sequences = parts.settings.max_sequences_per_request, parsed.num_sequences
    if num_sequences > most:
        raise ApiError(
            400,
            f"{num_sequences // parsed.n} prompts times n = {parsed.n} are {num_sequences} "
            f"sequences; one request may ask for at most {most} "
            "(gateway.max_sequences_per_request).",
            param="n",
        )
    return serving(parsed.model, parts)


def _work(
    parsed: GenerationForm,
    request: Request,
    session_header: Sequence[str],
    tenant: str,
    replicas: Sequence[Replica],
) -> Work:
    named = (request.headers.get(name) for name in session_header)
    session = next(filter(None, named), None)
    tokens = parsed.prompt_size_estimate() + parsed.max_new_tokens_estimate()
    # Clients ask for as much as they like; no sequence gets longer than the context.
    longest = max(replica.max_model_len for replica in replicas)
    return Work(
        model=parsed.model,
        tokens=min(tokens, parsed.num_sequences * longest),
        affinity=affinity_of(parsed, session=session, tenant=tenant),
        num_sequences=parsed.num_sequences,
    )


async def answer(request: RelayedRequest, tracer: Tracer, scope: Scope, receive: Receive) -> None:
    """Relay it, and account for what came of it."""
    client, outgoing = request.client, request.outgoing
    with request_span(tracer, f"POST {outgoing.path}", scope, outgoing.request_id) as span:
        completed = await run_until_disconnect(
            receive, relay(request), is_sent=lambda: client.is_complete
        )
        span.set_attributes(
            {
                "http.response.status_code": client.status,
                "pomona.model": outgoing.work.model,
                "pomona.replica": request.replica_id,
                "pomona.resumed": request.num_resumed,
                "pomona.completed": completed,
            }
        )
    _account(request, scope, completed)


def _account(request: RelayedRequest, scope: Scope, completed: bool) -> None:
    client, outgoing, metrics = request.client, request.outgoing, request.parts.metrics
    outcome_of(scope).status = client.final_status
    elapsed = time.perf_counter() - request.arrived
    model = outgoing.work.model
    metrics.resumed(model, request.num_resumed)
    metrics.reconnected(model, outgoing.goes_on)
    if request.placement is not None:
        metrics.placed(model, request.placement)
    key: ApiKey | None = scope.get(API_KEY)
    if client.error is not None:
        metrics.failed(model, client.error.type)
    elif completed and client.status == 200 and not client.has_error:
        metrics.completed(model, elapsed)
    if client.refusal is not None and client.final_status < 500:
        head, body = client.refusal
        error = told_error(head, body)
        record_refusal(metrics, scope, outgoing.path, error)
    log_request(
        logger,
        f"POST {outgoing.path} {client.status if completed else 'client gone'}",
        model=model,
        key=key.name if key else "-",
        # Serve has its own idea of a field `replica`: this gateway.
        served_by=request.replica_id,
        prefix_known=request.placement or "-",
        resumed=request.num_resumed,
        reconnected=outgoing.goes_on,
        seconds=round(elapsed, 3),
        request_id=outgoing.request_id,
    )
