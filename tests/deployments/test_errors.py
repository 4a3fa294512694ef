"""Errors as clients see them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deployments.backend import (
    BackendError,
    EngineStoppedError,
    InvalidRequestError,
    QueueFullError,
    ResumeError,
    StepError,
    UnavailableError,
)
from deployments.http.error_responses import error_response, exception_handlers
from deployments.http.errors import (
    MAX_SHOWN_CHARS,
    ApiError,
    api_error_from,
    model_not_found,
    shown,
)
from deployments.http.request_id import RequestIdMiddleware, choose_request_id
from deployments.http.response_events import ResponseEventsMiddleware
from deployments.wire.failure import FAILURE_HEADER, BelatedError
from tests.support.deployments.replica_server import in_memory


class NewError(BackendError):
    """One that a later backend may bring."""


@pytest.mark.parametrize(
    ("raised", "status", "kind", "param", "code", "headers"),
    [
        (
            InvalidRequestError("too long", param="prompt", code="context_length_exceeded"),
            400,
            "invalid_request_error",
            "prompt",
            "context_length_exceeded",
            {},
        ),
        (
            QueueFullError("full", retry_after=7),
            429,
            "rate_limit_error",
            None,
            "queue_full",
            {"Retry-After": "7"},
        ),
        (
            UnavailableError("draining"),
            503,
            "service_unavailable",
            None,
            "unavailable",
            {"Retry-After": "1"},
        ),
        (StepError("failed"), 500, "server_error", None, "step_failed", {}),
        (NewError("odd"), 500, "server_error", None, None, {}),
    ],
)
def test_what_a_backend_says_no_with(
    raised: BackendError,
    status: int,
    kind: str,
    param: str | None,
    code: str | None,
    headers: dict[str, str],
) -> None:
    error = api_error_from(raised)
    response = error_response(error)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert json.loads(bytes(response.body)) == {
        "error": {"message": str(raised), "type": kind, "param": param, "code": code}
    }
    assert {name: response.headers[name] for name in headers} == headers
    assert ("retry-after" in response.headers) == bool(headers)


@pytest.mark.parametrize(
    ("raised", "failure"),
    [
        (QueueFullError("full", retry_after=7), "full"),
        (UnavailableError("draining"), "sick"),
        (EngineStoppedError("gone"), "lost"),
        (StepError("failed"), "step-failed"),
        (ResumeError("begins again"), "cannot-resume"),
        (InvalidRequestError("too long"), None),
        (NewError("odd"), None),
    ],
)
def test_a_gateway_is_told_what_an_error_means(raised: BackendError, failure: str | None) -> None:
    error = api_error_from(raised)
    assert error_response(error).headers.get(FAILURE_HEADER) == failure
    belated = BelatedError.parse(BelatedError.render(error))
    assert belated == BelatedError(error.status, error.headers, error.json())
    assert belated.headers.get(FAILURE_HEADER) == failure


@pytest.mark.parametrize("rest", [b"", b"data: {}\n\n", b": keep-alive\n\n"])
def test_what_ends_without_a_whole_error_ends_with_none(rest: bytes) -> None:
    assert BelatedError.parse(rest) is None
    assert BelatedError.parse(BelatedError.render(ApiError(500, "no"))[:-1]) is None


def test_a_message_may_quote_what_utf8_cannot_say() -> None:
    assert json.loads(ApiError(400, "not \ud800").json())["error"]["message"] == "not \ud800"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 415, 422])
def test_what_no_retry_cures_says_so(status: int) -> None:
    assert ApiError(status, "no").headers["X-Should-Retry"] == "false"
    waits = ApiError(status, "wait", headers={"retry-after": "1"})
    assert waits.headers["X-Should-Retry"] == "true"


@pytest.mark.parametrize("status", [429, 503])
def test_who_may_come_back_is_told_to(status: int) -> None:
    assert (
        ApiError(status, "wait", headers={"Retry-After": "1"}).headers["X-Should-Retry"] == "true"
    )
    told = ApiError(status, "no", headers={"x-should-retry": "false"})
    assert told.headers == {"x-should-retry": "false"}
    assert ApiError(status, "no").headers == {}


def test_an_unknown_model_is_told_as_openai_does() -> None:
    error = model_not_found("gpt-9")
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")
    assert "gpt-9" in error.message


def app() -> Starlette:
    async def crash(request: Request) -> Response:
        raise RuntimeError("the password is 1234")

    async def refuse(request: Request) -> Response:
        raise QueueFullError("full", retry_after=3)

    async def teapot(request: Request) -> Response:
        raise HTTPException(418, "short and stout", headers={"X-Tea": "green"})

    return Starlette(
        routes=[Route("/crash", crash), Route("/refuse", refuse), Route("/teapot", teapot)],
        middleware=[Middleware(ResponseEventsMiddleware), Middleware(RequestIdMiddleware)],
        exception_handlers=exception_handlers(lambda scope, error: None),
    )


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "says"),
    [
        ("GET", "/crash", 500, "server_error", "The server had an error."),
        ("GET", "/refuse", 429, "rate_limit_error", "full"),
        ("GET", "/teapot", 418, "invalid_request_error", "short and stout"),
        ("GET", "/nowhere", 404, "invalid_request_error", "GET /nowhere"),
        ("DELETE", "/teapot", 405, "invalid_request_error", "DELETE is not allowed on /teapot"),
    ],
)
async def test_whatever_is_raised_has_openais_shape_and_the_request_id(
    method: str, path: str, status: int, kind: str, says: str
) -> None:
    async with in_memory(app()) as client:
        response = await client.request(method, path, headers={"X-Request-Id": "abc-1"})
    assert response.status_code == status
    assert response.headers["x-request-id"] == "abc-1"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == kind
    assert says in error["message"]
    assert "1234" not in response.text


async def test_headers_of_an_exception_are_kept() -> None:
    async with in_memory(app()) as client:
        assert (await client.get("/teapot")).headers["x-tea"] == "green"
        assert "GET" in (await client.post("/teapot")).headers["allow"]
        assert (await client.get("/refuse")).headers["retry-after"] == "3"


@pytest.mark.parametrize("given", ["a", "req-1.2:3/x=", "x" * 128])
def test_a_harmless_request_id_is_kept(given: str) -> None:
    assert choose_request_id(given) == given


@pytest.mark.parametrize("given", [None, "", "x" * 129, "a b", "a\nb", "é", 'a"b', "<x>"])
def test_another_request_id_is_replaced(given: str | None) -> None:
    first, second = choose_request_id(given), choose_request_id(given)
    assert first != second
    assert choose_request_id(first) == first


def test_of_a_long_value_only_what_is_shown_is_looked_at() -> None:
    seen = []

    class Members(list[int]):
        def __iter__(self) -> Iterator[int]:
            for member in super().__iter__():
                seen.append(member)
                yield member

    value = Members(range(1000))
    assert shown(value) == json.dumps([*range(1000)])[:MAX_SHOWN_CHARS] + "..."
    assert len(seen) < MAX_SHOWN_CHARS
    assert shown({"a": [1.5, None, "é"]}) == '{"a": [1.5, null, "\\u00e9"]}'
