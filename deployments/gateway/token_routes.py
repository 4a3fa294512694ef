"""The gateway's routes that tokenize: any replica of the model answers."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from deployments.gateway.accepting import accepted, serving
from deployments.gateway.access.api_keys import SCOPE_KEY as API_KEY
from deployments.gateway.access.api_keys import ApiKey
from deployments.gateway.parts import GatewayParts
from deployments.gateway.relay.ask import ask
from deployments.gateway.relay.failures import timed_out, told_error
from deployments.gateway.responses.accepting import tenant_of
from deployments.http.disconnect import run_until_disconnect
from deployments.http.request_id import SCOPE_KEY
from deployments.observe.logs import log_request
from deployments.protocol.token_paths import TOKEN_PATHS, parse_token_body
from deployments.wire.envelope import ENVELOPE_HEADER, Envelope

logger = logging.getLogger(__name__)


def token_routes(parts: GatewayParts) -> list[Route]:
    return [Route(path, _Tokens(parts), methods=["POST"]) for path in TOKEN_PATHS]


class _Tokens:
    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, is_sent = time.perf_counter(), False

        async def answer() -> None:
            nonlocal is_sent
            response = await self._answer(request, model, body, began)
            await response(scope, receive, send)
            is_sent = True

        async def accept(body: bytes) -> tuple[str, bytes]:
            only, tenant = self._only_model(), tenant_of(scope)
            asked = await parse_token_body(scope["path"], body, only, tenant=tenant)
            return serving(asked.model, self._parts)[0].model, body

        request = Request(scope, receive)
        model, body = await accepted(request, self._parts, accept)
        await run_until_disconnect(receive, answer(), is_sent=lambda: is_sent)

    async def _answer(self, request: Request, model: str, body: bytes, began: float) -> Response:
        """Raises ``ApiError``, whoever says it."""
        parts, scope, path = self._parts, request.scope, request.scope["path"]
        key: ApiKey | None = scope.get(API_KEY)
        envelope = Envelope.seal(tenant=key.tenant if key else "")
        headers = {"X-Request-Id": scope[SCOPE_KEY], ENVELOPE_HEADER: envelope.header()}
        try:
            elapsed_s = time.perf_counter() - began
            async with asyncio.timeout(parts.settings.request_timeout_s - elapsed_s):
                replica_id, (head, told) = await ask(parts, model, path, body, headers)
        except TimeoutError as error:
            raise timed_out(parts.settings.request_timeout_s) from error
        log_request(
            logger,
            f"POST {path} {head.status}",
            model=model,
            key=key.name if key else "-",
            served_by=replica_id,
            seconds=round(time.perf_counter() - began, 3),
            request_id=scope[SCOPE_KEY],
        )
        if head.status != 200:
            raise told_error(head, told)
        return Response(told, media_type="application/json")

    def _only_model(self) -> str | None:
        names = {replica.model for replica in self._parts.directory.replicas}
        return names.pop() if len(names) == 1 else None
