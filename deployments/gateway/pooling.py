"""The gateway's routes for vectors and rankings: relayed and accounted for like answers that are
generated, and counted by the tokens of their inputs."""

from __future__ import annotations

import time
from dataclasses import replace

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from deployments.gateway.accepting import check_priority, log_body, serving, whole_body
from deployments.gateway.access.limits_middleware import meter, reserve
from deployments.gateway.access.reservation import Reservation
from deployments.gateway.generation import answer, envelope_for
from deployments.gateway.metering import RequestMeter
from deployments.gateway.outcomes import outcome_of
from deployments.gateway.parts import GatewayParts
from deployments.gateway.relay.client_response import ClientResponse
from deployments.gateway.relay.request import Outgoing, RelayedRequest
from deployments.gateway.routing import Work
from deployments.http.request_id import SCOPE_KEY
from deployments.http.request_path import route_path
from deployments.protocol import StreamForm
from deployments.protocol.pooling import POOLING_PATHS, parse_pooling_body


def pooling_routes(parts: GatewayParts) -> list[Route]:
    return [Route(path, _Pooling(parts), methods=["POST"]) for path in POOLING_PATHS]


class _Pooling:
    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = time.perf_counter()
        outgoing, reservation = await _accept(Request(scope, receive), self._parts)
        client = ClientResponse(send, outgoing.stream_form)
        request = RelayedRequest(outgoing, self._parts, client, arrived)
        meter(scope, RequestMeter(request, reservation))
        await answer(request, self._parts.tracer, scope, receive)


async def _accept(request: Request, parts: GatewayParts) -> tuple[Outgoing, Reservation | None]:
    """With what is reserved of its key's tokens, if they are counted. Raises ``ApiError`` for
    whatever no replica needs to see."""
    path = route_path(request.scope)
    body = await whole_body(request, parts.settings.max_body_bytes)
    parsed = await parse_pooling_body(path, body)
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
