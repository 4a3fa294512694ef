"""Streamed answers: the events, their order, and what ends them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from deployments.http.sse import KEEP_ALIVE
from deployments.wire.checkpoint import CheckpointReader
from deployments.wire.envelope import ENVELOPE_HEADER, Envelope
from tests.support.clock import Clock
from tests.support.deployments.replica_server import (
    MODEL,
    build,
    chat,
    client_of,
    completion,
    events_of,
    in_memory,
)

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


async def until_nothing_is_left_to_do() -> None:
    """But what waits for a clock, or for who is outside of this loop."""
    for _ in range(100):
        await asyncio.sleep(0)


async def stream(body: dict[str, Any], **how: Any) -> httpx.Response:
    app, _ = await build(**how)
    path = CHAT if "messages" in body else COMPLETIONS
    async with in_memory(app) as client:
        return await client.post(path, json=body | {"stream": True})


async def test_chunks_of_a_chat() -> None:
    response = await stream(chat("one two"))
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"].startswith("req-")
    *chunks, done = events_of(response.text)
    assert done == "[DONE]"
    (identity,) = {chunk.pop("id") for chunk in chunks}
    (created,) = {chunk.pop("created") for chunk in chunks}
    assert identity.startswith("chatcmpl-")
    assert created > 1_700_000_000
    deltas = [
        ({"role": "assistant", "content": "", "refusal": None}, None),
        ({"content": "one"}, None),
        ({"content": " two"}, None),
        ({}, "stop"),
    ]
    assert chunks == [
        {
            "object": "chat.completion.chunk",
            "model": MODEL,
            "choices": [
                {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
            ],
        }
        for delta, finish_reason in deltas
    ]


async def test_chunks_of_a_completion() -> None:
    *chunks, done = events_of((await stream(completion("one two three", max_tokens=2))).text)
    assert done == "[DONE]"
    assert [(chunk["object"], chunk["model"]) for chunk in chunks] == [
        ("text_completion", MODEL)
    ] * 2
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": "one", "logprobs": None, "finish_reason": None}],
        [{"index": 0, "text": " two", "logprobs": None, "finish_reason": "length"}],
    ]


@pytest.mark.parametrize("body", [chat("a b"), completion("a b")])
async def test_usage_comes_last_and_only_when_asked_for(body: dict[str, Any]) -> None:
    *chunks, _ = events_of((await stream(body)).text)
    assert all("usage" not in chunk for chunk in chunks)
    asked = body | {"stream_options": {"include_usage": True}}
    *chunks, last, done = events_of((await stream(asked)).text)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["id"] == chunks[0]["id"]
    assert last["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


BODIES: list[dict[str, Any]] = [
    chat("one two three four", n=3, stop="three"),
    chat("é 🍎 日本", logprobs=True, top_logprobs=3, n=2),
    chat('quote " and \\ and \u2028'),
    completion(["one two", "three four five", "six"], n=2, max_tokens=2),
    completion("é 🍎 日本", logprobs=2, n=2),
    completion("a b c d", stop=["c d", "x"], logprobs=0),
]


@pytest.mark.parametrize("body", BODIES)
async def test_a_stream_adds_up_to_the_answer_that_is_not_streamed(body: dict[str, Any]) -> None:
    path = CHAT if "messages" in body else COMPLETIONS
    app, _ = await build(prefix_caching=False)
    async with in_memory(app) as client:
        whole = (await client.post(path, json=body)).json()
    asked = body | {"stream_options": {"include_usage": True}}
    *chunks, usage, _ = events_of((await stream(asked, prefix_caching=False)).text)
    assert usage["usage"] == whole["usage"]
    for choice in whole["choices"]:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert [c["finish_reason"] for c in parts if c["finish_reason"]] == [
            choice["finish_reason"]
        ]
        if path == CHAT:
            assert (
                "".join(c["delta"].get("content", "") for c in parts)
                == choice["message"]["content"]
            )
            assert [c["delta"]["role"] for c in parts if "role" in c["delta"]] == ["assistant"]
            folded = [one for c in parts if c["logprobs"] for one in c["logprobs"]["content"]]
            assert folded == (choice["logprobs"] or {"content": []})["content"]
        else:
            assert "".join(c["text"] for c in parts) == choice["text"]
            for name, values in (choice["logprobs"] or {}).items():
                assert [v for c in parts for v in c["logprobs"][name]] == values


async def test_prompts_run_side_by_side() -> None:
    app, backend = await build()
    backend.hold(after_tokens=1)
    async with client_of(app) as client:
        body = completion(["a b", "c d"], n=2, stream=True)
        async with client.stream("POST", COMPLETIONS, json=body) as response:
            # No prompt can finish before the gate opens, so both are under way.
            await backend.held.reaches(2)
            backend.release()
            chunks = events_of((await response.aread()).decode())[:-1]
    assert {chunk["choices"][0]["index"] for chunk in chunks[:4]} == {0, 1, 2, 3}


async def test_comments_keep_a_silent_stream_alive_before_and_after_the_first_token() -> None:
    for position, comment in ((0, ": prefill 0/2"), (1, ": keep-alive")):
        app, backend = await build(keep_alive_interval_s=0.01)
        backend.hold(after_tokens=position)
        async with client_of(app) as client:
            lines: list[str] = []
            body = completion("one two", stream=True)
            async with client.stream("POST", COMPLETIONS, json=body) as response:
                assert response.status_code == 200
                async for line in response.aiter_lines():
                    lines.append(line)
                    if lines.count(comment) == 3:
                        backend.release()
        texts = [
            event["choices"][0]["text"]
            for event in events_of("\n".join(lines))
            if isinstance(event, dict)
        ]
        assert texts == ["one", " two"]
        assert lines[:2] == ([comment, ""] if position == 0 else [lines[0], ""])
        assert "data: [DONE]" in lines


async def test_the_head_goes_out_once_the_engine_has_let_the_request_in() -> None:
    app, backend = await build()
    backend.hold()
    async with client_of(app) as client:
        # There is neither a token nor, for a minute, a keep-alive.
        for body in (completion("one two", stream=True), completion(["a b", "c d"], stream=True)):
            async with client.stream("POST", COMPLETIONS, json=body) as response:
                assert response.status_code == 200


async def test_the_head_waits_until_all_prompts_are_in() -> None:
    app, backend = await build(max_num_seqs=1, max_queued_requests=0)
    backend.hold()
    async with client_of(app) as client:
        body = completion(["a b", "c d"], stream=True)
        assert (await client.post(COMPLETIONS, json=body)).status_code == 429
        await backend.live.reaches(0)


async def test_a_keep_alive_tells_how_far_a_long_prompt_is() -> None:
    app, backend = await build(keep_alive_interval_s=0.01, options={"prefill_chunk": 2})
    backend.hold()
    lines: list[str] = []
    async with client_of(app) as client:
        body = completion(["a b c d e", "f g h"], stream=True)
        async with client.stream("POST", COMPLETIONS, json=body) as response:
            async for line in response.aiter_lines():
                lines.append(line)
                if line == ": prefill 6/8":
                    backend.release()
    assert "data: [DONE]" in lines


async def test_a_gateway_hears_of_tokens_before_an_answer_that_is_not_streamed() -> None:
    app, backend = await build(keep_alive_interval_s=0.01)
    backend.hold(after_tokens=2)
    headers = {ENVELOPE_HEADER: Envelope.seal().header()}
    reader, events = CheckpointReader(), b""
    async with client_of(app) as client:
        asked = completion(["a b c", "d e f"])
        async with client.stream("POST", COMPLETIONS, json=asked, headers=headers) as response:
            assert response.headers["content-type"] == "application/json"
            async for chunk in response.aiter_raw():
                events += reader.feed(chunk)
                if reader.num_logged == 4:
                    backend.release()
    *comments, event, _ = events.split(b"\n\n")
    assert {*comments} == {KEEP_ALIVE.rstrip()}
    assert json.loads(event.removeprefix(b"data: "))["usage"]["completion_tokens"] == 6
    assert (reader.num_logged, reader.prompt_tokens) == (6, 6)


@pytest.mark.parametrize("body", [chat("boom b c"), completion(["fine and well", "boom b c"])])
async def test_an_error_after_the_headers_is_the_last_event(body: dict[str, Any]) -> None:
    for fault, code in (("step_error", "step_failed"), ("crash", "internal_error")):
        app, backend = await build(options={"faults": {"boom": fault}}, keep_alive_interval_s=0.01)
        backend.hold()
        path = CHAT if "messages" in body else COMPLETIONS
        async with client_of(app) as client:
            request = body | {"stream": True}
            async with client.stream("POST", path, json=request) as response:
                assert response.status_code == 200
                backend.release()
                text = (await response.aread()).decode()
        *_, last = events_of(text)
        assert last["error"]["code"] == code
        assert set(last["error"]) == {"message", "type", "param", "code"}
        assert "secret" not in text
        assert "[DONE]" not in text
        assert backend.live.value == 0


@pytest.mark.parametrize("body", [chat("w " * 200), completion([1] * 200)])
async def test_an_error_at_admission_has_its_own_status(body: dict[str, Any]) -> None:
    response = await stream(body | {"max_tokens": 8})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    # LiteLLM and LangChain look for these words in the message, and fall back if they are there.
    assert error["message"].startswith("This model's maximum context length is 200 tokens. However")
    assert "requested 208 tokens (200 in the messages, 8 in the completion)" in error["message"]
    assert "context_length_exceeded" in error["message"]


async def test_a_stop_of_the_engine_does_not_look_like_an_end() -> None:
    app, backend = await build()
    backend.hold(after_tokens=1)
    async with client_of(app) as client:
        body = chat("one two three", stream=True)
        async with client.stream("POST", CHAT, json=body) as response:
            await backend.held.reaches(1)
            await backend.stop()
            text = (await response.aread()).decode()
    assert events_of(text)[-1]["error"]["code"] == "engine_stopped"
    assert 'finish_reason":"' not in text


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("fields", [{"stream": True}, {}])
async def test_an_engine_that_hangs_is_not_kept_alive(
    fields: dict[str, Any], position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, backend = await build(keep_alive_interval_s=10)
    backend.hold(after_tokens=position)
    async with client_of(app) as client:
        with monkeypatch.context() as patched:
            clock = Clock()
            patched.setattr(asyncio.get_running_loop(), "time", clock)
            asking = asyncio.create_task(client.post(CHAT, json=chat("one two", **fields)))
            await backend.held.reaches(1)
            await until_nothing_is_left_to_do()
            backend.healthy = False
            clock.time += 11
            await until_nothing_is_left_to_do()
        response = await asking
    told = events_of(response.text)
    assert told[-1]["error"]["code"] == "engine_stopped"
    assert not any(one.startswith(": ") for one in told if isinstance(one, str))
    # Before the request was let in there is still a status to say it with.
    assert response.status_code == (200 if fields else 503)
    assert backend.live.value == 0
