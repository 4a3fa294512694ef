"""The HTTP server of one replica: OpenAI's generation routes over one backend.

``/health``, ``/ready`` and ``/metrics`` are open; generation asks for the deployment's secret,
which only gateways know.
"""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deployments.backend import Backend, BackendError, ModelInfo
from deployments.http.error_responses import exception_handlers
from deployments.http.errors import ApiError, model_not_found, unauthorized
from deployments.http.request_body import read_body
from deployments.http.request_id import SCOPE_KEY, RequestIdMiddleware
from deployments.http.request_path import route_path
from deployments.http.response_events import ResponseEventsMiddleware
from deployments.observe.tracing import NoOpTracer, Tracer
from deployments.protocol import GENERATION_PATHS, parse_body
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.protocol.pooling import POOLING_PATHS, parse_pooling_body
from deployments.replica.asked import Answer
from deployments.replica.attempts import Attempts
from deployments.replica.kept_streams import KeptStreams
from deployments.replica.pooling import PoolingResponse
from deployments.replica.read_routes import reading_routes
from deployments.replica.response import GenerationResponse
from deployments.replica.token_routes import token_routes
from deployments.wire.checkpoint import Progress
from deployments.wire.envelope import ENVELOPE_HEADER, Envelope
from deployments.wire.failure import FAILURE_HEADER, FailureKind
from deployments.wire.last_word import ATTEMPTS_PATH


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
) -> Starlette:
    """``backend`` has been started and serves ``model``, which writes as ``chat_format`` says.
    ``on_failure`` gets the error type of each request that failed outside of the engine, which
    counts its own. Set ``app.state.draining`` to make ``/ready`` say no while requests in flight
    finish. Raises ``ValueError`` for an empty secret."""
    if not secret:
        raise ValueError("secret must not be empty: it guards the generation routes")
    expected = f"Bearer {secret}".encode()
    kept, attempts = KeptStreams(), Attempts()
    dialect = Dialect.of(
        model.chat_template,
        model.added_tokens,
        model.special_tokens,
        model.template_variables,
        name=chat_format,
    )

    def check_secret(request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, expected):
            raise _not_the_secret()

    async def last_word(request: Request) -> Response:
        check_secret(request)
        said = await attempts.last_word(request.path_params["attempt"])
        return Response(said.json(), media_type="application/json")

    async def generate(request: Request) -> GenerationResponse:
        check_secret(request)
        try:
            answer = await _answer(request, max_body_bytes, kept)
            if answer.request.model not in (model.name, *model.other_names):
                raise model_not_found(answer.request.model)
            return GenerationResponse(
                backend,
                answer,
                kept,
                attempts,
                model.default_sampling,
                dialect,
                # The client's id need not be unique; what the backend gets is.
                request_id=f"{request.scope[SCOPE_KEY]}-{uuid.uuid4().hex[:12]}",
                keep_alive_interval_s=keep_alive_interval_s,
                on_failure=on_failure,
                is_leaving=lambda: bool(request.app.state.draining),
                tracer=tracer or NoOpTracer(),
            )
        except ApiError as error:
            on_failure(error.type)
            raise
        except BackendError as error:
            on_failure(error.error_type)
            raise answer.refusal(error) from error

    async def pool(request: Request) -> PoolingResponse:
        check_secret(request)
        try:
            given = request.headers.get(ENVELOPE_HEADER)
            body = await read_body(request, max_body_bytes)
            asked = await parse_pooling_body(route_path(request.scope), body)
            if asked.model not in (model.name, *model.other_names):
                raise model_not_found(asked.model)
            return PoolingResponse(
                backend,
                asked,
                model.pooling,
                Envelope.parse(given) if given is not None else Envelope.seal(),
                attempts,
                for_gateway=given is not None,
                request_id=f"{request.scope[SCOPE_KEY]}-{uuid.uuid4().hex[:12]}",
                keep_alive_interval_s=keep_alive_interval_s,
                on_failure=on_failure,
                is_leaving=lambda: bool(request.app.state.draining),
                tracer=tracer or NoOpTracer(),
            )
        except ApiError as error:
            on_failure(error.type)
            raise
        except BackendError as error:
            on_failure(error.error_type)
            raise

    app = Starlette(
        routes=[
            *(Route(path, pool, methods=["POST"]) for path in POOLING_PATHS),
            *(Route(path, generate, methods=["POST"]) for path in GENERATION_PATHS),
            Route(f"{ATTEMPTS_PATH}/{{attempt}}", last_word, methods=["DELETE"]),
            *token_routes(
                backend,
                model,
                dialect,
                check_secret=check_secret,
                max_body_bytes=max_body_bytes,
                on_failure=on_failure,
            ),
            *reading_routes(backend, model, registry),
        ],
        middleware=[Middleware(ResponseEventsMiddleware), Middleware(RequestIdMiddleware)],
        exception_handlers=exception_handlers(lambda scope, error: None),
    )
    app.router.redirect_slashes = False
    app.state.draining = False
    return app


def _not_the_secret() -> ApiError:
    error = unauthorized("This replica answers its gateways only.")
    # A gateway's client has done nothing wrong.
    error.headers[FAILURE_HEADER] = FailureKind.SICK
    return error


async def _answer(request: Request, max_body_bytes: int, kept: KeptStreams) -> Answer:
    """Raises ``ApiError``."""
    given = request.headers.get(ENVELOPE_HEADER)
    envelope = Envelope.parse(given) if given is not None else Envelope.seal()
    sent = await read_body(request, max_body_bytes + envelope.log_bytes)
    body_bytes = len(sent) - envelope.log_bytes
    own = None
    if envelope.seen and not envelope.log_bytes:
        own = kept.find(envelope.answer_id, envelope.seen.tokens)
    return Answer(
        await parse_body(route_path(request.scope), sent[:body_bytes]),
        envelope,
        for_gateway=given is not None,
        progress=own or Progress.parse(sent[body_bytes:]),
        is_progress_known=own is None,
    )
