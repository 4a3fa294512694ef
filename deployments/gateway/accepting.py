"""What every request that replicas answer goes through first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from deployments.fleet.directory import Replica
from deployments.gateway.access.api_keys import SCOPE_KEY as API_KEY
from deployments.gateway.access.api_keys import ApiKey
from deployments.gateway.parts import GatewayParts
from deployments.gateway.relay.failures import no_replica, timed_out
from deployments.gateway.responses.accepting import tenant_of
from deployments.http.disconnect import unless_disconnected
from deployments.http.errors import ApiError, model_not_found, shown
from deployments.http.request_body import read_body
from deployments.http.request_id import REQUEST_ID_HEADER, SCOPE_KEY
from deployments.observe.logs import printable_json
from deployments.wire.envelope import Envelope

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def accepted(
    request: Request, parts: GatewayParts, accept: Callable[[bytes], Coroutine[Any, Any, T]]
) -> T:
    """Read the body and pass it to ``accept``, within the request's deadline and the body budget.
    Raises ``ApiError``; ``ClientDisconnect`` if the client goes away meanwhile."""
    settings = parts.settings
    try:
        async with asyncio.timeout(settings.request_timeout_s) as deadline:
            with parts.bodies.request(tenant_of(request.scope)) as hold:
                body = await whole_body(request, settings.max_body_bytes, hold)
                return await unless_disconnected(request.receive, accept(body))
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise timed_out(settings.request_timeout_s) from error


async def whole_body(request: Request, max_body_bytes: int, hold: Callable[[int], None]) -> bytes:
    """Raises ``ApiError``; also for an id of the request that can't be used."""
    # Who looks for an id of their own in a log would not find it.
    given = request.headers.get(REQUEST_ID_HEADER)
    if given is not None and given != request.scope[SCOPE_KEY]:
        raise ApiError(
            400,
            f"{REQUEST_ID_HEADER} must be 1 to 128 letters, digits or characters of ._:/=+-, "
            f"not {shown(given)}.",
            param=REQUEST_ID_HEADER,
        )
    try:
        return await read_body(request, max_body_bytes, hold)
    except ClientDisconnect as error:
        raise ApiError(400, "The connection closed before the end of the body.") from error


def log_body(request: Request, body: bytes, parts: GatewayParts) -> None:
    """Where the settings say so."""
    if parts.settings.log_prompts:
        text = printable_json(body.decode())
        logger.info("request_id=%s body=%s", request.scope[SCOPE_KEY], text)


def check_priority(priority: int, parts: GatewayParts) -> None:
    """Raises ``ApiError`` for one that clients may not choose."""
    if priority and not parts.settings.allow_priority:
        raise ApiError(
            400,
            "priority is not allowed here, since any client could pass all others; leave it out, "
            "or have gateway.allow_priority set.",
            param="priority",
        )


def serving(model: str, parts: GatewayParts) -> Sequence[Replica]:
    """The replicas that serve what a request calls ``model``, or did until they fell. Raises
    ``ApiError``."""
    if found := parts.directory.lately_serving(parts.directory.name_of(model)):
        return found
    # While there is no replica at all, nobody knows which models there will be.
    models = parts.directory.models()
    raise model_not_found(model, models) if models else no_replica(model)


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
