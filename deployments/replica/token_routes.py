"""The replica's routes that tokenize, and generate nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deployments.backend import Backend, BackendError, ModelInfo
from deployments.http.errors import ApiError, model_not_found
from deployments.http.request_body import read_body
from deployments.http.request_id import SCOPE_KEY
from deployments.http.request_path import route_path
from deployments.protocol.anthropic.token_count import CountTokens
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.protocol.token_paths import TOKEN_PATHS, parse_token_body
from deployments.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from deployments.replica.answer_json import encode
from deployments.wire.envelope import ENVELOPE_HEADER, Envelope


def token_routes(
    backend: Backend,
    model: ModelInfo,
    dialect: Dialect,
    *,
    check_secret: Callable[[Request], None],
    max_body_bytes: int,
    on_failure: Callable[[str], None],
) -> list[Route]:
    async def answer(request: Request) -> Response:
        check_secret(request)
        try:
            given = request.headers.get(ENVELOPE_HEADER)
            tenant = Envelope.parse(given).tenant if given is not None else ""
            path, body = route_path(request.scope), await read_body(request, max_body_bytes)
            asked = await parse_token_body(path, body, model.name)
            if asked.model not in (model.name, *model.other_names):
                raise model_not_found(asked.model)
            if isinstance(asked, DetokenizeRequest):
                told = asked.answer(await backend.detokenize(asked.tokens, tenant=tenant))
            else:
                told = await tokenized(asked, request.scope[SCOPE_KEY], tenant)
        except ApiError as error:
            on_failure(error.type)
            raise
        except BackendError as error:
            on_failure(error.error_type)
            raise
        return Response(encode(told), media_type="application/json")

    async def tokenized(
        asked: TokenizeRequest | CountTokens, request_id: str, tenant: str
    ) -> dict[str, Any]:
        request = asked.to_generation_request(request_id, model.default_sampling, dialect)
        request = replace(request, tenant=tenant)
        adds = asked.add_special_tokens
        token_ids = await backend.tokenize(request, add_special_tokens=adds)
        spelled = await backend.spell(token_ids, tenant=tenant) if asked.spells else []
        return asked.answer(token_ids, spelled, model.max_model_len)

    return [Route(path, answer, methods=["POST"]) for path in TOKEN_PATHS]
