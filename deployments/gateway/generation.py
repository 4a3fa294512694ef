"""The gateway's generation routes: what is relayed of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Scope

from deployments.fleet.directory import Replica
from deployments.gateway.accepting import (
    check_priority,
    envelope_for,
    log_body,
    serving,
)
from deployments.gateway.access.limits_middleware import meter, reserve
from deployments.gateway.access.reservation import Reservation
from deployments.gateway.metering import RefusalMeter
from deployments.gateway.outcomes import outcome_of
from deployments.gateway.parts import GatewayParts
from deployments.gateway.relay.request import Outgoing
from deployments.gateway.relay.resumable import ResumableReader
from deployments.gateway.relayed_route import RelayedRoute
from deployments.gateway.responses.accepting import accept, tenant_of
from deployments.gateway.responses.keeping import keeper_of
from deployments.gateway.resumption import resumption_of
from deployments.gateway.routing import Work, affinity_of
from deployments.gateway.served_by import wants_served_by
from deployments.http.errors import ApiError
from deployments.http.request_id import SCOPE_KEY
from deployments.protocol import GENERATION_PATHS, GenerationForm, ParsedRequest
from deployments.protocol.prompt_length import context_error
from deployments.wire.resumption import Resumption


def generation_routes(parts: GatewayParts) -> list[Route]:
    return [
        Route(path, RelayedRoute(parts, _accept), methods=["POST"]) for path in GENERATION_PATHS
    ]


async def _accept(
    request: Request, parts: GatewayParts, body: bytes
) -> tuple[Outgoing, Reservation | None]:
    path = request.scope["path"]
    tenant = tenant_of(request.scope)
    max_bytes = parts.settings.max_body_bytes
    accepted = await accept(path, body, tenant, parts.responses, max_bytes=max_bytes)
    parsed, form = accepted.parsed, accepted.parsed.form
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
    _check_length(parsed, replicas, request.scope, reservation)
    if reservation is not None:
        envelope = replace(
            envelope,
            max_tokens=reservation.answer_bound,
            max_prompt_tokens=reservation.max_prompt_tokens,
        )
    resumption = resumption and resumption.bounded(envelope)
    envelope = resumption.address(envelope) if resumption else envelope
    keeper = keeper_of(accepted, tenant, envelope.answer_id, parts.responses)
    outgoing = Outgoing(
        path=path,
        body=body + accepted.context,
        stream=form.stream,
        stream_form=parsed.stream_form,
        request_id=request.scope[SCOPE_KEY],
        work=work,
        envelope=replace(
            envelope, context_bytes=len(accepted.context), is_stored=keeper is not None
        ),
        begins_anew=not form.stream and form.has_logprobs,
        resumable=_resumable(resumption, parsed, parts),
        keeper=keeper,
        tells_server=wants_served_by(request.scope),
    )
    return outgoing, reservation


def _check_length(
    parsed: ParsedRequest,
    replicas: Sequence[Replica],
    scope: Scope,
    reservation: Reservation | None,
) -> None:
    """Raises ``ApiError`` for a prompt that fits nowhere: passing on a body that is refused costs
    engines time. It is charged as if one of them had read it."""
    roomiest = max(replicas, key=lambda one: one.max_model_len)
    longest_token = max(one.longest_token for one in replicas)
    if not all(one.longest_token for one in replicas):
        return
    refusal = context_error(
        parsed, max_model_len=roomiest.max_model_len, longest_token=longest_token
    )
    if refusal is not None:
        if reservation is not None:
            meter(scope, RefusalMeter(reservation))
        raise refusal


def _resumable(
    resumption: Resumption | None, parsed: ParsedRequest, parts: GatewayParts
) -> ResumableReader | None:
    if resumption is None:
        return None
    return ResumableReader(resumption, parts.resumption_key, parsed.stream_form.last_event)


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
    prompt_tokens = parsed.prompt_size_estimate()
    # Clients ask for as much as they like; no sequence gets longer than the context.
    most = parsed.num_sequences * max(replica.max_model_len for replica in replicas)
    return Work(
        model=parsed.model,
        tokens=min(prompt_tokens + parsed.max_new_tokens_estimate(), most),
        prompt_tokens=min(prompt_tokens, most) * parsed.n // parsed.num_sequences,
        affinity=affinity_of(parsed, session=session, tenant=tenant),
        num_sequences=parsed.num_sequences,
    )
