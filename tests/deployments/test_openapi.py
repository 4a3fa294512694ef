"""The OpenAPI document, and the gateway held to it by generated requests."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, assume, given, settings

from deployments.gateway.access.authentication import OPEN_PATHS
from deployments.gateway.openapi import openapi_document
from deployments.gateway.responses.memory import MemoryStore
from deployments.protocol import ChatCompletionRequest, CompletionRequest
from deployments.protocol.responses.request import ResponsesRequest
from tests.support.deployments.gateway_harness import fake_replica, gateway
from tests.support.fuzzing import EVERY_EXAMPLE

try:
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks
except ModuleNotFoundError:
    if "CI" in os.environ:
        raise
    pytest.skip("schemathesis is not installed: pip install schemathesis", allow_module_level=True)

POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
CASES = [
    ("post", "/v1/chat/completions", POSITIVE),
    ("post", "/v1/chat/completions", NEGATIVE),
    ("post", "/v1/completions", POSITIVE),
    ("post", "/v1/completions", NEGATIVE),
    ("post", "/v1/responses", POSITIVE),
    ("post", "/v1/responses", NEGATIVE),
    ("post", "/v1/responses/input_tokens", POSITIVE),
    ("post", "/v1/responses/input_tokens", NEGATIVE),
    # No generated id is one that is kept.
    ("get", "/v1/responses/{response_id}", POSITIVE),
    ("delete", "/v1/responses/{response_id}", POSITIVE),
    ("get", "/v1/responses/{response_id}/input_items", POSITIVE),
    ("get", "/v1/responses/{response_id}/input_items", NEGATIVE),
    ("post", "/v1/responses/{response_id}/cancel", POSITIVE),
    ("post", "/v1/messages", POSITIVE),
    ("post", "/v1/messages", NEGATIVE),
    ("post", "/v1/messages/count_tokens", POSITIVE),
    ("post", "/v1/messages/count_tokens", NEGATIVE),
    ("post", "/v1/embeddings", POSITIVE),
    ("post", "/v1/embeddings", NEGATIVE),
    ("post", "/v1/rerank", POSITIVE),
    ("post", "/v1/rerank", NEGATIVE),
    ("post", "/rerank", POSITIVE),
    ("post", "/rerank", NEGATIVE),
    ("post", "/tokenize", POSITIVE),
    ("post", "/tokenize", NEGATIVE),
    ("post", "/detokenize", POSITIVE),
    ("post", "/detokenize", NEGATIVE),
    ("get", "/version", POSITIVE),
    ("get", "/v1/fleet", POSITIVE),
    # Whatever a path holds is a name.
    ("get", "/v1/models/{name}", POSITIVE),
    ("get", "/v1/models", POSITIVE),
    ("get", "/health", POSITIVE),
    ("get", "/ready", POSITIVE),
]
WHATEVER_IS_SENT_IS_A_NAME = {
    ("get", "/v1/responses/{response_id}"),
    ("delete", "/v1/responses/{response_id}"),
    ("post", "/v1/responses/{response_id}/cancel"),
    ("get", "/v1/models/{name}"),
}
"""Nothing that could be wrong goes with it."""


def examples(quick: int) -> settings:
    return settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=25 if EVERY_EXAMPLE else quick,
        suppress_health_check=list(HealthCheck),
    )


KEY = "a-key-for-generated-requests"
PATIENCE_S = 120
"""By itself Schemathesis gives up after 10 s, and the tests would depend on the machine."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as url:
        yield url


@pytest.fixture(scope="module")
def url_with_keys() -> Iterator[str]:
    with served(KEY) as url:
        yield url


@contextmanager
def served(*keys: str) -> Iterator[str]:
    """A gateway and a replica in a loop of their own, since generated cases are synchronous."""
    started, urls = threading.Event(), list[str]()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        # A short context bounds what a generated request can ask for.
        store = MemoryStore(max_bytes=1 << 20, max_bytes_per_key=1 << 20, max_age_s=3600)
        async with (
            fake_replica(max_model_len=48) as one,
            gateway([one], keys=keys, responses=store, watches=True) as running,
        ):
            urls.append(running.url)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(30)
    yield urls[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()


def test_the_document_is_served_and_has_every_field(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    assert document == json.loads(json.dumps(openapi_document()))
    schemas = document["components"]["schemas"]
    for model in (ChatCompletionRequest, CompletionRequest, ResponsesRequest):
        described = schemas[model.__name__]
        assert (
            described["properties"].keys() == model.model_fields.keys() | model.unsupported.keys()
        )
        assert described["additionalProperties"] is False
    chat = schemas["ChatCompletionRequest"]["properties"]
    assert chat["documents"]["enum"] == [[], None]
    assert {"type": "null"} in chat["temperature"]["anyOf"]
    assert schemas["ChatCompletionRequest"]["required"] == ["model", "messages"]
    content, null = schemas["Message"]["properties"]["content"]["anyOf"]
    assert {"type": "string"} in content["anyOf"]
    assert null == {"type": "null"}


def test_every_operation_of_the_document_is_asked() -> None:
    operations = {
        (method, path): operation
        for path, methods in openapi_document()["paths"].items()
        for method, operation in methods.items()
    }
    assert {(method, path) for method, path, _ in CASES} == operations.keys()
    assert len({*CASES}) == len(CASES)
    can_be_wrong = {
        one for one, asked in operations.items() if {"requestBody", "parameters"} & asked.keys()
    }
    asked_wrongly = {(method, path) for method, path, mode in CASES if mode is NEGATIVE}
    assert asked_wrongly == can_be_wrong - WHATEVER_IS_SENT_IS_A_NAME


def described(method: str, path: str) -> Any:
    return schema()[path][method]


@cache
def schema() -> Any:
    document = json.loads(json.dumps(openapi_document()))
    for schema in document["components"]["schemas"].values():
        properties = schema.get("properties", {})
        if "description" in properties.get("model", ()):
            named = {"const": "demo"}
            required = "model" in schema["required"]
            properties["model"] = named if required else {"enum": ["demo", None]}
    return schemathesis.openapi.from_dict(document)


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_generated_requests_are_answered_as_described(
    url: str, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    operation = described(method, path)
    statuses: set[int] = set()

    @given(case=operation.as_strategy(generation_mode=mode))
    @examples(4)
    def hold(case: schemathesis.Case) -> None:
        response = case.call(base_url=url, timeout=PATIENCE_S)
        # What is beyond a bound of one field may be beyond that of a body.
        assume(response.status_code != 413)
        case.validate_response(
            response,
            checks=[
                not_a_server_error,
                checks.status_code_conformance,
                checks.content_type_conformance,
                checks.response_schema_conformance,
                checks.negative_data_rejection,
            ],
        )
        statuses.add(response.status_code)

    hold()
    if mode is NEGATIVE:
        assert max(statuses) < 500
        assert 200 not in statuses
    elif "{" not in path:
        assert 200 in statuses


@pytest.mark.parametrize(
    ("method", "path"), [(method, path) for method, path, mode in CASES if mode is POSITIVE]
)
def test_whatever_is_asked_without_a_key_is_refused_as_described(
    url_with_keys: str, method: str, path: str
) -> None:
    as_described = [checks.content_type_conformance, checks.response_schema_conformance]

    # A key is looked for before anything else of a request.
    @given(case=described(method, path).as_strategy(generation_mode=POSITIVE))
    @examples(1)
    def hold(case: schemathesis.Case) -> None:
        for headers in ({}, {"Authorization": f"Bearer {KEY}x"}):
            response = case.call(base_url=url_with_keys, headers=headers, timeout=PATIENCE_S)
            assert response.status_code == (200 if path in OPEN_PATHS else 401)
            case.validate_response(response, checks=as_described)
        key = {"Authorization": f"Bearer {KEY}"}
        allowed = case.call(base_url=url_with_keys, headers=key, timeout=PATIENCE_S)
        assert allowed.status_code != 401

    hold()
