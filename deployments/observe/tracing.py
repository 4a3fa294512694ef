"""OpenTelemetry traces of requests, from the gateway to the engine's door. Off by default.

A client's `traceparent` (W3C Trace Context) is continued; every span has the request's id.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer, Span, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import Scope

from deployments.settings import ObservabilitySettings, SettingsError

__all__ = [
    "NoOpTracer",
    "Tracer",
    "build_tracer",
    "check_tracing",
    "request_span",
    "trace_headers",
]

EXPORTER = "opentelemetry.exporter.otlp.proto.http"
_propagator = TraceContextTextMapPropagator()


def check_tracing(settings: ObservabilitySettings) -> None:
    """Raises ``SettingsError`` if traces are asked for and can't be sent."""
    if settings.traces_endpoint is not None and not _is_installed(EXPORTER):
        raise SettingsError(
            "observability.traces_endpoint needs an exporter: pip install 'pomona-serve[traces]'"
        )


def build_tracer(settings: ObservabilitySettings, service: str) -> Tracer:
    """Sends what it is told in the background to ``traces_endpoint``, if there is one."""
    if settings.traces_endpoint is None:
        return NoOpTracer()
    check_tracing(settings)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    provider = TracerProvider(
        resource=Resource.create({SERVICE_NAME: service}),
        sampler=ParentBasedTraceIdRatio(settings.traces_ratio),
    )
    exporter = OTLPSpanExporter(endpoint=settings.traces_endpoint)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider.get_tracer("deployments")


@contextmanager
def request_span(tracer: Tracer, name: str, scope: Scope, request_id: str) -> Iterator[Span]:
    """A span as long as the block, below the caller's if ``scope`` names one."""
    headers = Headers(scope=scope)
    with tracer.start_as_current_span(
        name,
        context=_propagator.extract(headers, context=Context()),
        kind=SpanKind.SERVER,
        attributes={"pomona.request_id": request_id},
    ) as span:
        yield span


def trace_headers() -> dict[str, str]:
    """What makes the span of whoever is called next one below the current span."""
    headers: dict[str, str] = {}
    _propagator.inject(headers)
    return headers


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # Its parent is missing too.
        return False
