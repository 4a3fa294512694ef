"""The HTTP server of one replica: OpenAI's generation routes over one backend.

``/health``, ``/ready`` and ``/metrics`` are open; generation asks for the deployment's secret,
which only gateways know.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deployments.backend import Backend, BackendError, ModelInfo
from deployments.http.disconnect import unless_disconnected
from deployments.http.error_responses import exception_handlers
from deployments.http.errors import ApiError, unauthorized
from deployments.http.request_body import read_body
from deployments.http.request_id import RequestIdMiddleware
from deployments.http.response_events import ResponseEventsMiddleware
from deployments.observe.tracing import NoOpTracer, Tracer
from deployments.protocol import GENERATION_PATHS, parse_body
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.protocol.pooling import POOLING_PATHS, parse_pooling_body
from deployments.replica.asked import Answer
from deployments.replica.parts import ReplicaParts, engine_request_id
from deployments.replica.pooling import PoolingResponse
from deployments.replica.read_routes import reading_routes
from deployments.replica.reading import EngineReader, HostReader
from deployments.replica.response import GenerationResponse
from deployments.replica.token_routes import token_routes
from deployments.wire.checkpoint import Progress
from deployments.wire.envelope import ENVELOPE_HEADER, Envelope
from deployments.wire.failure import FAILURE_HEADER, FailureKind
from deployments.wire.last_word import ATTEMPTS_PATH
from deployments.wire.reading import READING_PATH


def build_replica_app(
    *,
    backend: Backend,
    model: ModelInfo,
    secret: str,
    registry: CollectorRegistry,
    on_failure: Callable[[str], None],
    max_body_bytes: int,
    keep_alive_interval_s: float,
    chat_format: str = "auto",
    tracer: Tracer | None = None,
    max_num_seqs: int = 0,
    host: HostReader | None = None,
) -> Starlette:
    """``backend`` has been started and serves ``model``, which writes as ``chat_format`` says.
    ``on_failure`` gets the error type of each request that failed outside of the engine, which
    counts its own. ``max_num_seqs`` and ``host``: what gateways are told of them. Set
    ``app.state.draining`` to make ``/ready`` say no while requests in flight finish. Raises
    ``ValueError`` for an empty secret."""
    if not secret:
        raise ValueError("secret must not be empty: it guards the generation routes")
    expected = f"Bearer {secret}".encode()
    dialect = Dialect.of(
        model.chat_template,
        model.added_tokens,
        model.special_tokens,
        model.template_variables,
        name=chat_format,
    )
    parts = ReplicaParts(
        backend=backend,
        model=model,
        dialect=dialect,
        max_body_bytes=max_body_bytes,
        keep_alive_interval_s=keep_alive_interval_s,
        on_failure=on_failure,
        is_leaving=lambda: bool(app.state.draining),
        tracer=tracer or NoOpTracer(),
    )

    def check_secret(request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, expected):
            raise _not_the_secret()

    async def last_word(request: Request) -> Response:
        check_secret(request)
        said = await parts.attempts.last_word(request.path_params["attempt"])
        return Response(said.json(), media_type="application/json")

    reader = EngineReader(
        backend, model, parts.attempts, max_num_seqs, host or HostReader(), parts.is_leaving
    )

    async def reading(request: Request) -> Response:
        check_secret(request)
        return Response(reader.read().model_dump_json(), media_type="application/json")

    async def generate(request: Request) -> GenerationResponse:
        check_secret(request)
        with parts.refusals_counted():
            answer = await _answer(request, parts)
            parts.check_model(answer.request.model)
            try:
                return GenerationResponse(parts, answer, engine_request_id(request.scope))
            except BackendError as error:
                raise answer.refusal(error) from error

    async def pool(request: Request) -> PoolingResponse:
        check_secret(request)
        with parts.refusals_counted():
            given = request.headers.get(ENVELOPE_HEADER)
            envelope = Envelope.parse(given) if given is not None else Envelope.seal()
            body = await read_body(request, max_body_bytes)
            parsing = parse_pooling_body(request.scope["path"], body, tenant=envelope.tenant)
            asked = await unless_disconnected(request.receive, parsing)
            parts.check_model(asked.model)
            return PoolingResponse(
                parts,
                asked,
                envelope,
                engine_request_id(request.scope),
                for_gateway=given is not None,
            )

    app = Starlette(
        routes=[
            *(Route(path, pool, methods=["POST"]) for path in POOLING_PATHS),
            *(Route(path, generate, methods=["POST"]) for path in GENERATION_PATHS),
            Route(f"{ATTEMPTS_PATH}/{{attempt}}", last_word, methods=["DELETE"]),
            Route(READING_PATH, reading),
            *token_routes(parts, check_secret),
            *reading_routes(backend, model, registry),
        ],
        middleware=[Middleware(ResponseEventsMiddleware), Middleware(RequestIdMiddleware)],
        exception_handlers=exception_handlers(lambda scope, error: None),
    )
    app.router.redirect_slashes = False
    app.state.draining = False
    app.state.can_think = dialect.can_think
    return app


def _not_the_secret() -> ApiError:
    error = unauthorized("This replica answers its gateways only.")
    # A gateway's client has done nothing wrong.
    error.headers[FAILURE_HEADER] = FailureKind.SICK
    return error


async def _answer(request: Request, parts: ReplicaParts) -> Answer:
    """Raises ``ApiError``."""
    given = request.headers.get(ENVELOPE_HEADER)
    envelope = Envelope.parse(given) if given is not None else Envelope.seal()
    added = envelope.context_bytes + envelope.log_bytes
    sent = await read_body(request, parts.max_body_bytes + added)
    log_at = len(sent) - envelope.log_bytes
    context_at = log_at - envelope.context_bytes
    own = None
    if envelope.seen and not envelope.log_bytes:
        own = parts.kept.find(envelope.answer_id, envelope.seen.tokens)
    path, body, context = request.scope["path"], sent[:context_at], sent[context_at:log_at]
    parsing = parse_body(path, body, context, tenant=envelope.tenant)
    return Answer(
        await unless_disconnected(request.receive, parsing),
        envelope,
        for_gateway=given is not None,
        progress=own or Progress.parse(sent[log_at:]),
        is_progress_known=own is None,
    )
