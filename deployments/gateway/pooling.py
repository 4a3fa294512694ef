"""The gateway's routes for vectors and rankings: relayed and accounted for like answers that are
generated, and counted by the tokens of their inputs."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.routing import Route

from deployments.gateway.accepting import (
    check_priority,
    envelope_for,
    log_body,
    serving,
)
from deployments.gateway.access.limits_middleware import reserve
from deployments.gateway.access.reservation import Reservation
from deployments.gateway.outcomes import outcome_of
from deployments.gateway.parts import GatewayParts
from deployments.gateway.relay.request import Outgoing
from deployments.gateway.relayed_route import RelayedRoute
from deployments.gateway.responses.accepting import tenant_of
from deployments.gateway.routing import Work
from deployments.http.request_id import SCOPE_KEY
from deployments.protocol import StreamForm
from deployments.protocol.pooling import POOLING_PATHS, parse_pooling_body


def pooling_routes(parts: GatewayParts) -> list[Route]:
    return [Route(path, RelayedRoute(parts, _accept), methods=["POST"]) for path in POOLING_PATHS]


async def _accept(
    request: Request, parts: GatewayParts, body: bytes
) -> tuple[Outgoing, Reservation | None]:
    path = request.scope["path"]
    parsed = await parse_pooling_body(path, body, tenant=tenant_of(request.scope))
    log_body(request, body, parts)
    check_priority(parsed.priority, parts)
    replicas = serving(parsed.model, parts)
    outcome_of(request.scope).model = model = replicas[0].model
    envelope = envelope_for(request.scope, parts)
    longest = max(replica.max_model_len for replica in replicas)
    reservation = reserve(request.scope, parsed, max_tokens=None, max_model_len=longest)
    if reservation is not None:
        envelope = replace(envelope, max_prompt_tokens=reservation.max_prompt_tokens)
    outgoing = Outgoing(
        path=path,
        body=body,
        stream=False,
        stream_form=StreamForm(),
        request_id=request.scope[SCOPE_KEY],
        # Texts of one request have nothing in common that a cache could have: any replica will do.
        work=Work(model, parsed.size_estimate()),
        envelope=envelope,
        begins_anew=True,
    )
    return outgoing, reservation
