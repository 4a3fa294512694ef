"""Every error on the paths of the Messages API, in its shape."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import ErrorResponse

from deployments.gateway.access.api_keys import ApiKey, KeyRing
from deployments.gateway.access.rate_limits import RateLimits
from deployments.http.errors import ApiError
from deployments.protocol import parse_request
from deployments.protocol.parsed import in_own_names
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import fake_replica, gateway
from tests.support.deployments.messages_api import TOOLS, body, checked_events
from tests.support.deployments.scripted_backend import Scripted

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"


def error_in(response: httpx.Response) -> dict[str, str]:
    told = ErrorResponse.model_validate(response.json())
    assert not told.model_extra
    assert not told.error.model_extra
    assert told.request_id == response.headers["request-id"] == response.headers["x-request-id"]
    return {"type": told.error.type, "message": told.error.message}


def said(*content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(content)}]}


def asked_of(path: str, fields: dict[str, Any]) -> bool:
    """Who counts tokens may leave out what says how many there are to be, and the only model."""
    return path == PATH or fields not in ({"max_tokens": None}, {"model": None})


TEXT = {"type": "text", "text": "a"}
RESULT = {"type": "tool_result", "tool_use_id": "t"}
USE = {"type": "tool_use", "id": "t", "name": "time", "input": {}}

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": None}, "max_tokens", "required: an integer of at least 0"),
    ({"max_tokens": -1}, "max_tokens", "at least 0"),
    ({"max_tokens": "5"}, "max_tokens", 'not "5"'),
    ({"model": None}, "model", "required"),
    ({"messages": None}, "messages", "required"),
    ({"messages": []}, "messages", "non-empty array"),
    ({"messages": "hi"}, "messages", "array"),
    ({"messages": [{"content": "a"}]}, "messages[0].role", "required"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role", '"assistant"'),
    ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "messages[0].name", "known"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "array of blocks"),
    (said({"text": "a"}), "messages[0].content[0].type", "required"),
    (said({"type": "text"}), "messages[0].content[0].text", "required: a string"),
    (said({"type": "text", "text": 5}), "messages[0].content[0].text", "a string, not 5"),
    (said(TEXT | {"id": "x"}), "messages[0].content[0].id", "not for a block of type text"),
    (said(TEXT | {"colour": 1}), "messages[0].content[0].colour", "not a known field"),
    (said({"type": "document", "source": {}}), "messages[0].content[0].type", '"document"'),
    (said({"type": "smell"}), "messages[0].content[0].type", '"tool_result"'),
    (said(USE), "messages[0].content[0].type", "a message of role user can't have"),
    (said(RESULT, role="assistant"), "messages[0].content[0].type", "role assistant can't have"),
    (said(RESULT, role="system"), "messages[0].content[0].type", "role system can't have"),
    (said({"type": "tool_result"}), "messages[0].content[0].tool_use_id", "required"),
    (said(RESULT | {"is_error": "no"}), "messages[0].content[0].is_error", "a boolean"),
    (said(USE | {"input": "{]"}, role="assistant"), "messages[0].content[0].input", "object"),
    (said(USE | {"name": "a b"}, role="assistant"), "messages[0].content[0].name", "letters"),
    (said(USE | {"id": ""}, role="assistant"), "messages[0].content[0].id", "non-empty"),
    (said({"type": "thinking"}, role="assistant"), "messages[0].content[0].thinking", "required"),
    (said(TEXT, USE, role="assistant"), "messages[0].content", "must end with a text"),
    (said(role="assistant"), "messages[0].content", "must end with a text"),
    (said(), "messages", "non-empty"),
    ({"system": 5}, "system", "array of text blocks"),
    ({"system": [RESULT]}, "system[0].type", 'must be "text"'),
    ({"temperature": 1.5}, "temperature", "from 0 to 1"),
    ({"top_p": 0}, "top_p", "more than 0"),
    ({"top_k": "5"}, "top_k", "an integer"),
    ({"stop_sequences": "x"}, "stop_sequences", "an array"),
    ({"stop_sequences": [""]}, "stop_sequences[0]", "non-empty"),
    ({"stream": "yes"}, "stream", "a boolean"),
    ({"n": 2}, "n", "not a known field"),
    ({"max_completion_tokens": 5}, "max_completion_tokens", "Did you mean"),
    ({"container": "c"}, "container", "not supported"),
    ({"mcp_servers": [{"name": "x"}]}, "mcp_servers", "not supported"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema", "required"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name", "required"),
    ({"tools": [TOOLS[0] | {"name": "a b"}]}, "tools[0].name", "letters"),
    (
        {"tools": [TOOLS[0] | {"input_schema": {"type": "array"}, "strict": True}]},
        "tools[0].input_schema",
        "object",
    ),
    ({"tools": [TOOLS[0] | {"strict": 1}]}, "tools[0].strict", "a boolean"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].name", "another tool's"),
    ({"tools": [TOOLS[0] | {"allowed_callers": ["x"]}]}, "tools[0].allowed_callers", "supported"),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type", "there are no tools"),
    ({"tool_choice": "auto"}, "tool_choice", "an object"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name", "required"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name", "none of"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "auto", "name": "x"}},
        "tool_choice.name",
        "no other",
    ),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "required"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 9}}, "thinking.budget_tokens", "no other"),
    ({"output_config": {"effort": "some"}}, "output_config.effort", '"xhigh"'),
    ({"output_config": {"format": {"type": "json"}}}, "output_config.format.type", "json_schema"),
    (
        {"output_config": {"format": {"type": "json_schema"}}},
        "output_config.format.schema",
        "required",
    ),
    (
        {"tools": TOOLS, "output_config": {"format": {"type": "json_schema", "schema": {}}}},
        "output_config.format",
        "combined with tools",
    ),
    ({"thread": {"type": "continue", "previous_message_id": "m"}}, "thread", "not supported"),
    ({"compaction": {"type": "summarize"}}, "compaction", "not supported"),
]


async def test_what_is_wrong_is_named() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        for fields, param, says in BAD:
            for path in (PATH, COUNT):
                if not asked_of(path, fields):
                    continue
                response = await running.client.post(path, json=body(**fields))
                error = error_in(response)
                assert (response.status_code, error["type"]) == (400, "invalid_request_error")
                assert error["message"].startswith(param), error
                assert says in error["message"], error
        assert (await running.client.post(PATH, json=body())).status_code == 200
    assert len(BAD) > 60


async def test_what_is_no_json() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        response = await running.client.post(PATH, content=b"{")
    assert error_in(response)["type"] == "invalid_request_error"


async def test_what_only_the_model_can_refuse_is_named_as_here() -> None:
    backend = Scripted("ok", chat_template="{{ messages }}", added_tokens={})
    async with fake_replica(backend) as one, gateway([one]) as running:
        for fields, param in (
            (
                {"tools": TOOLS},
                "Send no tools, or set engine.chat_template to a template with tools, or "
                "engine.chat_format to the form of its calls",
            ),
            (
                {"thinking": {"type": "enabled", "budget_tokens": 5000}},
                "thinking.type can't be",
            ),
        ):
            for path in (PATH, COUNT):
                error = error_in(await running.client.post(path, json=body(**fields)))
                assert error["type"] == "invalid_request_error"
                assert param in error["message"], error


@pytest.mark.parametrize(
    ("param", "own"),
    [
        ("tools[3].function.parameters", "tools[3].input_schema"),
        ("tools[3].function.name", "tools[3].name"),
        ("enable_thinking", "thinking.type"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("thinking_token_budget", "thinking.budget_tokens"),
        ("tools", "tools"),
    ],
)
def test_fields_of_the_chat_have_their_own_names(param: str, own: str) -> None:
    tools = [TOOLS[0] | {"name": f"f{number}"} for number in range(4)]
    names = parse_request(PATH, json.dumps(body(tools=tools)).encode()).own_names
    told = in_own_names(ApiError(400, f"{param}.x: can't be", param=param), names)
    assert (told.param, told.message) == (own, f"{own}.x: can't be")


async def test_a_schema_that_can_not_be_held_is_named() -> None:
    """Qwen3-Coder writes strings raw, up to a marker: no pattern can hold them."""
    template = "<tool_call>\n<function= {{ messages }}"
    backend = Scripted("ok", chat_template=template, added_tokens={})
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x+$"}}}
    tool = {"name": "f", "input_schema": schema, "strict": True}
    async with fake_replica(backend) as one, gateway([one]) as running:
        for path in (PATH, COUNT):
            response = await running.client.post(path, json=body(tools=[*TOOLS, tool]))
            assert "tools[2].input_schema" in error_in(response)["message"], response.text


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", PATH, 405, "invalid_request_error"),
        ("POST", f"{PATH}/batches", 404, "not_found_error"),
        ("GET", f"{PATH}/batches/x/results", 404, "not_found_error"),
    ],
)
async def test_what_is_not_there(method: str, path: str, status: int, kind: str) -> None:
    async with gateway([]) as running:
        response = await running.client.request(method, path)
    assert (response.status_code, error_in(response)["type"]) == (status, kind)


async def test_other_paths_keep_their_shape() -> None:
    async with gateway([]) as running:
        response = await running.client.post("/v1/messagesx", json={})
    assert set(response.json()) == {"error"}


async def test_a_key_in_either_header() -> None:
    async with fake_replica() as one, gateway([one], keys=["good"]) as running:

        async def status(**headers: str) -> int:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            response = await running.client.post(PATH, json=body(), headers=sent)
            if response.status_code != 200:
                assert error_in(response)["type"] == "authentication_error"
            return response.status_code

        assert await status(x_api_key="good") == 200
        assert await status(authorization="Bearer good") == 200
        assert await status(authorization="Bearer other", x_api_key="good") == 200
        assert await status(authorization="Bearer good", x_api_key="other") == 200
        assert await status(authorization="Basic good") == 401
        assert await status(x_api_key="") == 401
        assert await status(x_api_key="other") == 401
        assert await status() == 401


async def ask(url: str, text: str = "one two three", *, key: str = "good", **fields: Any) -> Any:
    async with AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client:
        asked: Any = body(messages=[{"role": "user", "content": text}], **fields)
        return await client.messages.create(**asked)


async def test_the_package_knows_who_may_not_ask() -> None:
    async with fake_replica() as one, gateway([one], keys=["good"]) as running:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await ask(running.url, key="wrong")
        assert caught.value.type == "authentication_error"
        with pytest.raises(anthropic.NotFoundError):
            await ask(running.url, model="other")
    async with fake_replica() as one, gateway([one]) as running:
        response = await running.client.post(
            PATH, json=body(), headers={"X-Forwarded-For": "192.0.2.9"}
        )
    assert (response.status_code, error_in(response)["type"]) == (403, "permission_error")


async def test_a_body_that_is_too_large() -> None:
    async with fake_replica() as one, gateway([one], max_body_bytes=2000) as running:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await ask(running.url, "x" * 2000)
    assert (caught.value.status_code, caught.value.type) == (413, "request_too_large")


async def test_limits_and_full_queues() -> None:
    limits = RateLimits(requests_per_minute=2)
    keys = KeyRing([ApiKey.of("one", "good", limits=limits)])
    backend = FakeBackend()
    backend.hold()
    async with (
        fake_replica(backend, max_num_seqs=1, max_queued_requests=0) as one,
        gateway([one], keys=keys) as running,
    ):
        first = asyncio.create_task(ask(running.url))
        await backend.held.reaches(1)
        for wait in ("2", None):
            with pytest.raises(anthropic.RateLimitError) as caught:
                await ask(running.url)
            assert caught.value.type == "rate_limit_error"
            assert wait in (None, caught.value.response.headers["retry-after"])
        backend.release()
        assert (await first).content[0].text == "one two three"


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [("boom b c d", 502, "api_error"), ("bug b c d", 500, "api_error")],
)
async def test_faults(text: str, status: int, kind: str) -> None:
    options = {"faults": {"boom": "step_error", "bug": "crash"}}
    async with fake_replica(options=options) as one, gateway([one], keys=["good"]) as running:
        with pytest.raises(anthropic.InternalServerError) as caught:
            await ask(running.url, text)
    assert (caught.value.status_code, caught.value.type) == (status, kind)


async def test_nobody_is_there() -> None:
    async with gateway([], keys=["good"]) as running:
        with pytest.raises(anthropic.InternalServerError) as caught:
            await ask(running.url)
    assert (caught.value.status_code, caught.value.type) == (503, "overloaded_error")
    assert caught.value.response.headers["retry-after"] == "1"


async def test_a_stream_that_breaks_off_ends_with_an_error() -> None:
    options = {"faults": {"boom": "step_error"}, "can_resume": False}
    text = "boom " + "w " * 20
    async with (
        fake_replica(options=options) as one,
        gateway([one], resume_timeout_s=0.1) as running,
    ):
        asked = body(stream=True, messages=[{"role": "user", "content": text}])
        response = await running.client.post(PATH, json=asked)
        client = AsyncAnthropic(base_url=running.url, api_key="any", max_retries=0)
        with pytest.raises(anthropic.APIStatusError) as caught:
            async with client.messages.stream(
                model="demo", max_tokens=50, messages=asked["messages"]
            ) as stream:
                await stream.get_final_message()
        await client.close()
    assert response.status_code == 200
    events = checked_events(response.text)
    assert events[0]["type"] == "message_start"
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert caught.value.type == "api_error"


async def test_a_prompt_that_is_too_long_is_told_as_agents_expect() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        long = body(messages=[{"role": "user", "content": "w " * 5000}])
        error = error_in(await running.client.post(PATH, json=long))
    assert error["type"] == "invalid_request_error"
    assert error["message"] == "prompt is too long: 5000 tokens > 4095 maximum"
