"""The gateway's HTTP interface: authenticate, validate, pick a replica, relay."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware

from deployments.gateway.access.authentication import AuthenticationMiddleware
from deployments.gateway.access.cross_origin import cross_origin
from deployments.gateway.access.error_shapes import shaped_response
from deployments.gateway.access.limits_middleware import LimitsMiddleware
from deployments.gateway.generation import generation_routes
from deployments.gateway.outcomes import OutcomesMiddleware
from deployments.gateway.page.routes import page_routes
from deployments.gateway.parts import GatewayParts
from deployments.gateway.pooling import pooling_routes
from deployments.gateway.read_routes import reading_routes
from deployments.gateway.refusals_log import RefusalRecorder
from deployments.gateway.responses.routes import response_routes
from deployments.gateway.token_routes import token_routes
from deployments.gateway.watch.routes import fleet_routes
from deployments.http.drain_request import WholeRequestMiddleware
from deployments.http.error_responses import exception_handlers
from deployments.http.request_id import RequestIdMiddleware
from deployments.http.response_events import ResponseEventsMiddleware

__all__ = ["GatewayParts", "build_gateway_app"]


def build_gateway_app(parts: GatewayParts) -> Starlette:
    """Set ``app.state.draining`` to make ``/ready`` say no, so that load balancers send their
    requests elsewhere, while everything else goes on."""

    refused = RefusalRecorder(parts.metrics).tell
    app = Starlette(
        routes=[
            *generation_routes(parts),
            *token_routes(parts),
            *response_routes(parts.responses),
            *pooling_routes(parts),
            *reading_routes(parts),
            *fleet_routes(parts.watch),
            *(page_routes() if parts.settings.page else ()),
        ],
        middleware=[
            Middleware(ResponseEventsMiddleware),
            Middleware(OutcomesMiddleware, on_end=parts.metrics.ended),
            Middleware(RequestIdMiddleware),
            Middleware(WholeRequestMiddleware, max_body_bytes=parts.settings.max_body_bytes),
            *cross_origin(parts.settings.allowed_origins),
            Middleware(
                AuthenticationMiddleware,
                keys=parts.keys,
                allowed_origins=parts.settings.allowed_origins,
                on_refused=refused,
            ),
            Middleware(LimitsMiddleware, limiter=parts.limiter, on_refused=refused),
        ],
        exception_handlers=exception_handlers(refused, shaped_response),
    )
    app.router.redirect_slashes = False
    app.state.draining = False
    return app
