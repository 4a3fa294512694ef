"""A route whose requests are relayed to a replica, and accounted for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from deployments.gateway.accepting import accepted
from deployments.gateway.access.api_keys import SCOPE_KEY as API_KEY
from deployments.gateway.access.api_keys import ApiKey
from deployments.gateway.access.limits_middleware import meter
from deployments.gateway.access.reservation import Reservation
from deployments.gateway.metering import RequestMeter
from deployments.gateway.outcomes import outcome_of
from deployments.gateway.parts import GatewayParts
from deployments.gateway.refusals_log import record_refusal
from deployments.gateway.relay.client_response import ClientResponse
from deployments.gateway.relay.failures import told_error
from deployments.gateway.relay.relay import relay
from deployments.gateway.relay.request import Outgoing, RelayedRequest
from deployments.http.disconnect import run_until_disconnect
from deployments.observe.logs import log_request
from deployments.observe.tracing import request_span

logger = logging.getLogger(__name__)

Accept = Callable[
    [Request, GatewayParts, bytes], Coroutine[Any, Any, tuple[Outgoing, Reservation | None]]
]
"""What is to be relayed of a request and its body, with what is reserved of its key's tokens, where
they are counted. Raises ``ApiError`` for whatever no replica needs to see."""


class RelayedRoute:
    """An application of its own: around a function, Starlette would wrap each chunk once more."""

    def __init__(self, parts: GatewayParts, accept: Accept) -> None:
        self._parts = parts
        self._accept = accept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = time.perf_counter()
        request, parts = Request(scope, receive), self._parts
        outgoing, reservation = await accepted(
            request, parts, partial(self._accept, request, parts)
        )
        told = (outgoing.stream_form, outgoing.request_id, outgoing.keeper)
        client = ClientResponse(send, *told)
        relayed = RelayedRequest(outgoing, parts, client, arrived)
        meter(scope, RequestMeter(relayed, reservation))
        await self._answer(relayed, scope, receive)

    async def _answer(self, request: RelayedRequest, scope: Scope, receive: Receive) -> None:
        """Relay it, and account for what came of it."""
        client, outgoing, tracer = request.client, request.outgoing, self._parts.tracer
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
