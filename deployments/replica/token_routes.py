"""The replica's routes that tokenize, and generate nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deployments.backend import BackendError
from deployments.http.disconnect import unless_disconnected
from deployments.http.errors import api_error_from
from deployments.http.request_body import read_body
from deployments.http.request_id import SCOPE_KEY
from deployments.protocol.parsed import in_own_names
from deployments.protocol.token_paths import TOKEN_PATHS, parse_token_body
from deployments.protocol.tokenization import CountedChat, DetokenizeRequest, TokenizeRequest
from deployments.replica.answer_json import encode
from deployments.replica.parts import ReplicaParts
from deployments.wire.envelope import ENVELOPE_HEADER, Envelope


def token_routes(parts: ReplicaParts, check_secret: Callable[[Request], None]) -> list[Route]:
    backend, model = parts.backend, parts.model

    async def answer(request: Request) -> Response:
        check_secret(request)
        with parts.refusals_counted():
            given = request.headers.get(ENVELOPE_HEADER)
            tenant = Envelope.parse(given).tenant if given is not None else ""
            path = request.scope["path"]
            body = await read_body(request, parts.max_body_bytes)
            parsing = parse_token_body(path, body, model.name, tenant=tenant)
            asked = await unless_disconnected(request.receive, parsing)
            parts.check_model(asked.model)
            if isinstance(asked, DetokenizeRequest):
                told = asked.answer(await backend.detokenize(asked.tokens, tenant=tenant))
            else:
                told = await tokenized(asked, request.scope[SCOPE_KEY], tenant)
        return Response(encode(told), media_type="application/json")

    async def tokenized(
        asked: TokenizeRequest | CountedChat, request_id: str, tenant: str
    ) -> dict[str, Any]:
        try:
            request = asked.to_generation_request(request_id, model.default_sampling, parts.dialect)
            request = replace(request, tenant=tenant)
            adds = asked.add_special_tokens
            token_ids = await backend.tokenize(request, add_special_tokens=adds)
        except BackendError as error:
            own_names = asked.own_names if isinstance(asked, CountedChat) else {}
            raise in_own_names(api_error_from(error), own_names) from error
        spelled = await backend.spell(token_ids, tenant=tenant) if asked.spells else []
        return asked.answer(token_ids, spelled, model.max_model_len)

    return [Route(path, answer, methods=["POST"]) for path in TOKEN_PATHS]
