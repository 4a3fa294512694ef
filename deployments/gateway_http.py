"""The gateway's HTTP interface: authenticate, validate, pick a replica, relay."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware

from deployments.admission import AdmissionMiddleware
from deployments.cross_origin import cross_origin
from deployments.errors import ApiError, exception_handlers
from deployments.gateway_generation import generation_routes
from deployments.gateway_parts import GatewayParts
from deployments.gateway_readings import reading_routes
from deployments.limits_middleware import LimitsMiddleware
from deployments.outcomes import OutcomesMiddleware
from deployments.request_id import RequestIdMiddleware
from deployments.whole_request import WholeRequestMiddleware

__all__ = ["GatewayParts", "build_gateway_app"]


def build_gateway_app(parts: GatewayParts) -> Starlette:
    """Set ``app.state.draining`` to make ``/ready`` say no, so that load balancers send their
    requests elsewhere, while everything else goes on."""

    def count(error: ApiError) -> None:
        parts.metrics.failed("", error.type)

    app = Starlette(
        routes=[*generation_routes(parts), *reading_routes(parts)],
        middleware=[
            Middleware(OutcomesMiddleware, on_end=parts.metrics.ended),
            Middleware(RequestIdMiddleware),
            Middleware(WholeRequestMiddleware, max_body_bytes=parts.settings.max_body_bytes),
            *cross_origin(parts.settings.allowed_origins),
            Middleware(
                AdmissionMiddleware,
                keys=parts.keys,
                allowed_origins=parts.settings.allowed_origins,
                on_refused=count,
            ),
            Middleware(LimitsMiddleware, limiter=parts.limiter, on_refused=count),
        ],
        exception_handlers=exception_handlers(count),
    )
    app.router.redirect_slashes = False
    app.state.draining = False
    return app
