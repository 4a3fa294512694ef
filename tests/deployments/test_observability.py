from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer
from ray._common.formatters import JSONFormatter
from ray.serve._private.logging_utils import ServeComponentFilter, ServeComponentType

from deployments.app import build_app
from deployments.gateway.refusals_log import words_of
from deployments.observe.tracing import build_tracer
from deployments.settings import ObservabilitySettings, SettingsError
from deployments.wire.failure import FailureKind
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    ScriptedReplica,
    fake_replica,
    gateway,
    scripted,
    serving,
)

pytestmark = pytest.mark.serve

CLIENT_TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENT_SPAN = "b7ad6b7169203331"


class JsonLines(logging.Handler):
    """Lines as Serve writes them in an actor with `encoding: JSON`."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JSONFormatter())
        self.addFilter(ServeComponentFilter("Gateway", "g1", ServeComponentType.REPLICA))
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))

    def of(self, request_id: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("request_id") == request_id]


@pytest.fixture
def log() -> Iterator[JsonLines]:
    handler = JsonLines()
    logger = logging.getLogger("deployments")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("/v1/vector_stores", "/v1/vector_stores"),
        ("/api/generate", "/api/generate"),
        ("messages[0].content", "messages[0].content"),
        ("X-Request-Id", "X-Request-Id"),
        ("-", "*"),
        ("/v1/sk-a1b2c3d4", "/v1/*"),
        ("an-own-key-of-some-length", "*"),
        ("a\nb", "*"),
    ],
)
def test_what_may_be_a_key_is_not_told(name: str, told: str) -> None:
    assert words_of(name) == told


@pytest.mark.parametrize(
    ("path", "fields", "counted", "param", "reason"),
    [
        ("/v1/chat/completions", {"temperature": 7}, None, "temperature", "invalid_field"),
        ("/v1/chat/completions", {"a\nb": 1}, None, "*", "invalid_field"),
        ("/v1/chat/completions", {"model": "nope"}, None, "model", "model_not_found"),
        ("/v1/nothing%0A", {}, "other", "-", "unknown_url"),
    ],
)
async def test_a_refusal_leaves_one_line_and_one_count(
    log: JsonLines, path: str, fields: dict[str, Any], counted: str | None, param: str, reason: str
) -> None:
    async with fake_replica() as replica, gateway([replica], keys=["secret"]) as running:
        headers = {"X-Request-Id": "refused", "Authorization": "Bearer secret"}
        response = await running.client.post(path, json={**CHAT, **fields}, headers=headers)
        count = running.metrics.registry.get_sample_value(
            "pomona_gateway_refusals_total",
            {
                "replica": "gateway-1",
                "node": "10.0.0.1",
                "path": counted or path,
                "reason": reason,
            },
        )
    [line] = log.of("refused")
    assert line["message"].startswith(f"refused with status {response.status_code} path=")
    assert "\n" not in line["message"]
    assert (line["param"], line["reason"], line["key"]) == (param, reason, "key-0")
    assert count == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_replica_refuses_is_told_and_counted_alike(
    log: JsonLines, stream: bool
) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "word " * 9}], "stream": stream}
    async with fake_replica(max_model_len=8) as replica, gateway([replica]) as running:
        headers = {"X-Request-Id": "refused"}
        response = await running.client.post("/v1/chat/completions", json=body, headers=headers)
        count = running.metrics.registry.get_sample_value(
            "pomona_gateway_refusals_total",
            {
                "replica": "gateway-1",
                "node": "10.0.0.1",
                "path": "/v1/chat/completions",
                "reason": "context_length_exceeded",
            },
        )
    assert response.status_code == 400
    [line] = (one for one in log.of("refused") if one["message"].startswith("refused with"))
    assert line["message"].startswith("refused with status 400 path=/v1/chat/completions")
    assert line["reason"] == "context_length_exceeded"
    assert count == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_found_by_its_id_from_gateway_to_engine(
    log: JsonLines, stream: bool
) -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as replica, gateway([replica]) as running:
        headers = {"X-Request-Id": "find-me"}
        body = {**CHAT, "stream": stream}
        await running.client.post("/v1/chat/completions", json=body, headers=headers)
    engine, relayed = sorted(log.of("find-me"), key=lambda line: "served_by" in line)
    assert relayed["served_by"] == replica.replica_id
    assert relayed["message"].startswith("POST /v1/chat/completions 200 model=demo key=-")
    assert min(relayed["seconds"], engine["seconds"]) >= 0
    assert backend.requests[0].request_id.startswith(engine["engine_request_id"])
    assert (engine["prompt_tokens"], engine["completion_tokens"]) == (3, 3)
    assert "generation finished" in engine["message"]
    assert not any("one two three" in line["message"] for line in log.lines)


async def test_a_replica_that_fails_is_told_with_the_requests_id(log: JsonLines) -> None:
    async with (
        scripted(ScriptedReplica(status=503, failure=FailureKind.SICK), name="replica-0") as broken,
        fake_replica(FakeBackend()) as replica,
        gateway([broken, replica]) as running,
    ):
        headers = {"X-Request-Id": "find-me"}
        await running.client.post("/v1/chat/completions", json=CHAT, headers=headers)
    [failed] = [line for line in log.of("find-me") if line["levelname"] == "WARNING"]
    assert failed["served_by"] == "replica-0"


def test_log_format_reaches_serve() -> None:
    for log_format, encoding in (("json", "JSON"), ("text", "TEXT")):
        gateway = build_app({"observability": {"log_format": log_format}})._bound_deployment
        engine = gateway.init_args[-1]._bound_deployment
        for deployment in (gateway, engine):
            config = deployment._deployment_config.logging_config
            assert config["encoding"] == encoding


class Spans:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("tests")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


async def test_a_trace_goes_from_the_client_through_gateway_and_replica() -> None:
    spans = Spans()
    async with (
        fake_replica(tracer=spans.tracer) as replica,
        gateway([replica], tracer=spans.tracer) as running,
    ):
        headers = {"X-Request-Id": "mine", "traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"}
        await running.client.post("/v1/chat/completions", json=CHAT, headers=headers)
        await running.client.post("/v1/chat/completions", json=CHAT)
    relayed, other = spans.named("POST /v1/chat/completions")
    generated, _ = spans.named("generate")
    assert relayed.parent is not None
    assert f"{relayed.parent.span_id:016x}" == CLIENT_SPAN
    assert generated.parent is not None
    assert generated.parent.span_id == relayed.context.span_id
    assert {f"{span.context.trace_id:032x}" for span in (relayed, generated)} == {CLIENT_TRACE}
    assert f"{other.context.trace_id:032x}" != CLIENT_TRACE
    for span in (relayed, generated):
        assert span.attributes is not None
        assert span.attributes["pomona.request_id"] == "mine"
    assert relayed.attributes is not None
    assert relayed.attributes["http.response.status_code"] == 200
    assert generated.attributes is not None
    assert generated.attributes["gen_ai.usage.output_tokens"] == 3
    assert generated.attributes["pomona.outcome"] == "finished"


async def test_a_request_that_fails_over_shows_every_attempt() -> None:
    spans = Spans()
    async with (
        fake_replica(options={"faults": {"one": "unavailable"}}, tracer=spans.tracer) as broken,
        fake_replica(name="replica-2", tracer=spans.tracer) as replica,
        gateway([broken, replica], tracer=spans.tracer) as running,
    ):
        await running.client.post("/v1/chat/completions", json=CHAT)
    attempts = spans.named("generate")
    [relayed] = spans.named("POST /v1/chat/completions")
    outcomes = [span.attributes["pomona.outcome"] for span in attempts if span.attributes]
    assert sorted(outcomes) == ["failed", "finished"]
    assert {span.parent.span_id for span in attempts if span.parent} == {relayed.context.span_id}


def test_no_endpoint_means_no_traces() -> None:
    assert isinstance(build_tracer(ObservabilitySettings(), "x"), NoOpTracer)


def test_an_endpoint_without_an_exporter_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "deployments.observe.tracing.EXPORTER", "opentelemetry.exporter.not_there.http"
    )
    with pytest.raises(SettingsError, match="pip install 'pomona-serve\\[traces\\]'"):
        build_app({"observability": {"traces_endpoint": "http://127.0.0.1:4318/v1/traces"}})


async def test_spans_reach_a_collector() -> None:
    if "CI" not in os.environ:
        pytest.importorskip(
            "opentelemetry.exporter.otlp.proto.http", reason="pip install 'pomona-serve[traces]'"
        )
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    collector = ScriptedReplica(status=200)
    async with serving(collector) as url:
        settings = ObservabilitySettings(traces_endpoint=f"{url}/v1/traces")
        tracer = build_tracer(settings, "pomona-gateway")
        tracer.start_span("a span", attributes={"pomona.request_id": "mine"}).end()
        await asyncio.to_thread(tracer.span_processor.force_flush)  # type: ignore[attr-defined]
        await asyncio.to_thread(tracer.span_processor.shutdown)  # type: ignore[attr-defined]
    [(headers, body)] = collector.requests
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    assert resource.scope_spans[0].spans[0].name == "a span"
    assert "pomona-gateway" in str(resource.resource)
