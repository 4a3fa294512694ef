"""What the benchmark of a cluster counts as a failure, and as a difference."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from backend_metal.backend import MlxBackend
from deployments.backend import EngineConfig
from deployments.replica.app import build_replica_app
from tests.support.cluster.deployment import ENGINE
from tests.support.cluster.outcome import Outcome
from tests.support.cluster.requests import (
    CHAT,
    MESSAGES,
    RESPONSES,
    TOOL,
    Form,
    Request,
    requests,
)
from tests.support.cluster.said import Said
from tests.support.cluster.streams import Stream
from tests.support.cluster.validity import problem_of
from tests.support.deployments.replica_server import SECRET, in_memory

pytestmark = pytest.mark.serve

COMPLETIONS = "/v1/completions"
REQUEST = Request(COMPLETIONS, {})


def event(**choice: Any) -> str:
    whole = {"index": 0, "text": "", "logprobs": None, "finish_reason": None} | choice
    return "data: " + json.dumps({"choices": [whole]})


def a_stream(*lines: str) -> Stream:
    stream = Stream(0, REQUEST)
    for line in lines:
        stream.take(line)
        stream.take("")
    return stream


def test_requests_are_the_same_each_time_and_of_all_sorts() -> None:
    asked = requests(200)
    assert asked == requests(200)
    assert sum(one.body["temperature"] == 0 for one in asked) == 100
    assert {(one.path, one.form, one.thinks) for one in asked} == {
        (COMPLETIONS, "text", False),
        (CHAT, "text", False),
        (CHAT, "text", True),
        (CHAT, "json", False),
        (CHAT, "call", False),
        (CHAT, "call", True),
        *((path, form, False) for path in (RESPONSES, MESSAGES) for form in ("json", "call")),
        *((path, "json", True) for path in (RESPONSES, MESSAGES)),
    }
    for greedy in (True, False):
        ours = [one for one in asked if (one.body["temperature"] == 0) == greedy]
        assert {"logprobs" in one.body for one in ours} == {True, False}
        assert {one.thinks for one in ours} == {True, False}
        assert {"call", "text"} <= {one.form for one in ours}


@pytest.mark.exhaustive
async def test_each_sort_is_answered_as_it_asks() -> None:
    backend = MlxBackend()
    app = build_replica_app(
        backend=backend,
        model=await backend.start(EngineConfig(**ENGINE, device="cpu")),
        secret=SECRET,
        registry=CollectorRegistry(),
        on_failure=lambda error_type: None,
        max_body_bytes=2**20,
        keep_alive_interval_s=60,
    )
    asked = [one for one in requests(20) if one.thinks or one.form != "text"]

    async def problem(client: httpx.AsyncClient, request: Request) -> str | None:
        stream = Stream(0, request)
        response = await client.post(request.path, json=request.body)
        for line in response.text.removesuffix("\n").split("\n"):
            stream.take(line)
        return problem_of(request, stream.said) if stream.done else response.text

    async with in_memory(app) as client:
        assert await asyncio.gather(*(problem(client, one) for one in asked)) == [None] * 10
    await backend.stop()


def a_json_stream(path: str, *events: dict[str, object]) -> Stream:
    stream = Stream(number=0, request=Request(path, {"stream": True}))
    for one in events:
        stream.take(f"data: {json.dumps(one)}")
        stream.take("")
    return stream


def test_what_the_other_two_apis_say() -> None:
    usage = {"input_tokens": 3, "output_tokens": 2}
    responses = a_json_stream(
        "/v1/responses",
        {"type": "response.output_text.delta", "delta": "an "},
        {"type": "response.output_text.delta", "delta": "apple"},
        {
            "type": "response.completed",
            "response": {"status": "completed", "usage": usage, "error": None},
        },
    )
    assert not responses.done
    responses.take("data: [DONE]")
    responses.take("")
    messages = a_json_stream(
        "/v1/messages",
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "an "}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "apple"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    )
    assert responses.done
    assert messages.done
    assert responses.said == Said("an apple", (), ("completed",), 3, 2)
    assert messages.said == Said("an apple", (), ("end_turn",), 3, 2)


SPOKEN = {
    CHAT: (
        {"choices": [{"delta": {"reasoning_content": "Hm."}, "finish_reason": None}]},
        {
            "choices": [
                {
                    "delta": {
                        "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]
                    },
                    "finish_reason": None,
                }
            ]
        },
        *(
            {
                "choices": [
                    {
                        "delta": {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]},
                        "finish_reason": None,
                    }
                ]
            }
            for piece in ("{", "}")
        ),
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    ),
    RESPONSES: (
        {"type": "response.output_item.added", "item": {"type": "reasoning", "content": []}},
        {"type": "response.reasoning_text.delta", "delta": "Hm."},
        {"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}},
        {"type": "response.function_call_arguments.delta", "delta": "{"},
        {"type": "response.function_call_arguments.delta", "delta": "}"},
    ),
    MESSAGES: (
        {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "Hm."}},
        {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "x"}},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "}"}},
    ),
}


@pytest.mark.parametrize("path", SPOKEN)
def test_thoughts_and_calls_are_told_apart(path: str) -> None:
    stream = a_json_stream(path, *SPOKEN[path])
    assert (stream.said.text, stream.said.thought, stream.said.calls) == ("", "Hm.", (("f", "{}"),))
    assert len(stream.token_times) == 3


ROWS = json.dumps({"rows": ["a row of twenty letters"] * 12})


@pytest.mark.parametrize(
    ("form", "thinks", "said", "problem"),
    [
        ("text", False, {"text": "an apple"}, None),
        ("text", True, {"text": "an apple", "thought": "Hm."}, None),
        ("json", False, {"text": ROWS}, None),
        ("call", True, {"calls": ((TOOL, ROWS),), "thought": "Hm."}, None),
        ("text", False, {}, "no text"),
        ("text", False, {"text": "an apple", "thought": "Hm."}, "thinks unasked"),
        ("text", True, {"text": "an apple"}, "no thought"),
        ("text", True, {"text": "</think>an apple", "thought": "Hm."}, "marker"),
        ("json", False, {"text": ROWS[:-1]}, "delimiter"),
        ("json", False, {"text": json.dumps({"rows": []})}, "too short|non-empty"),
        ("json", False, {"calls": ((TOOL, ROWS),)}, "no text"),
        ("call", False, {"text": ROWS}, "not one call"),
        ("call", False, {"calls": ((TOOL, ROWS),) * 2}, "not one call"),
        ("call", False, {"calls": ((TOOL, ROWS),), "text": "an"}, "not one call"),
        ("call", False, {"calls": ((TOOL, ROWS + ROWS),)}, "Extra data"),
        ("call", False, {"calls": ((TOOL, ROWS.replace("row", "<tool_call>", 1)),)}, "marker"),
    ],
)
def test_what_is_valid(form: Form, thinks: bool, said: dict[str, Any], problem: str | None) -> None:
    request = Request(CHAT, {"stream": True}, form, thinks)
    whole = replace(Said("", (), ("stop",), 3, 2), **said)
    found = problem_of(request, whole)
    assert (found is None) == (problem is None), found
    assert re.search(problem or "", found or "")


def test_what_a_stream_says() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    stream = a_stream(
        event(text="an "),
        ": keep-alive",
        event(text="apple", finish_reason="length", logprobs={"tokens": ["apple"]}),
        "data: " + json.dumps({"choices": [], "usage": usage}),
    )
    assert not stream.done
    stream.take("data: [DONE]")
    assert not stream.done
    stream.take("")
    assert stream.done
    said = stream.said
    assert (said.text, said.tokens, said.finish_reasons) == ("an apple", ("apple",), ("length",))
    assert (said.prompt_tokens, said.completion_tokens) == (3, 2)
    assert len(stream.token_times) == 2


@pytest.mark.parametrize(
    "lines",
    [
        ['data: {"error": {"message": "lost"}}'],
        ["data: [DONE]", event(text="more")],
        ["data: [DONE]", "data: [DONE]"],
        ["data: {"],
    ],
)
def test_what_no_stream_should_hold(lines: list[str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        a_stream(*lines)


def test_only_whole_streams_can_differ() -> None:
    whole = a_stream(event(text="an apple"), "data: [DONE]")
    broken = a_stream(event(text="an"))
    broken.failure = "the stream ended before it was done"
    outcome = Outcome([whole, broken], happened_at=0.0, recovered_s=1.0)
    assert outcome.failures == ["0: the stream ended before it was done"]
    assert Outcome([a_stream(event(text="an"))], 0.0, 1.0).failures == ["0: it has no end"]
    assert outcome.differences([whole.said]) == []
    invalid = Stream(0, Request(CHAT, {}, "json"), whole.saying, done=True)
    assert "Expecting value" in Outcome([invalid], 0.0, 1.0).failures[0]
    pear = a_stream(event(text="a pear")).said
    assert len(outcome.differences([pear])) == 1
    assert outcome.differences([pear], [whole.said]) == []


def test_what_an_event_met() -> None:
    streams = [a_json_stream(path, *SPOKEN[path]) for path in SPOKEN]
    streams.append(Stream(0, Request(CHAT, {}, "json")))
    for stream, parts in zip(streams, ["call", "thought", "call", "text"], strict=True):
        stream.token_times = [1.0, 4.0, 8.0]
        stream.token_parts = ["thought", parts, "call"]  # type: ignore[list-item]
    assert Outcome(streams, happened_at=5.0, recovered_s=9.0).parts_met == {
        f"{CHAT} call": 1,
        f"{RESPONSES} thought": 1,
        f"{MESSAGES} call": 1,
        f"{CHAT} json": 1,
    }
    assert Outcome(streams, happened_at=8.0, recovered_s=9.0).parts_met == {}
    assert a_json_stream(CHAT, *SPOKEN[CHAT]).token_parts == ["thought", "call", "call"]


def test_waits_are_of_streams_that_met_the_event() -> None:
    before, met, later = (Stream(number, REQUEST) for number in range(3))
    before.token_times = [1.0, 2.0]
    met.token_times = [1.0, 4.0, 12.0, 13.0]
    later.token_times = [30.0, 31.0]
    outcome = Outcome([before, met, later], happened_at=5.0, recovered_s=9.0)
    assert outcome.next_token_s == 7.0
    assert outcome.longest_silence_s == 8.0
