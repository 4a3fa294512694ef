"""Answers that aren't streamed, and the routes around them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from deployments.backend import AttentionStatus, Backend, ModelInfo
from deployments.replica.app import build_replica_app
from tests.support.deployments.bad_input import BadInput, bad_inputs
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.replica_server import (
    MAX_BODY_BYTES,
    MAX_MODEL_LEN,
    MODEL,
    build,
    chat,
    client_of,
    completion,
    in_memory,
)

CASES = bad_inputs(model=MODEL, max_body_bytes=MAX_BODY_BYTES, max_model_len=MAX_MODEL_LEN)


async def post(body: dict[str, Any], **how: Any) -> httpx.Response:
    app, _ = await build(**how)
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with in_memory(app) as client:
        return await client.post(path, json=body)


async def test_a_request_without_sampling_fields_is_drawn_as_the_model_says() -> None:
    app, backend = await build(generation_defaults={"temperature": 0.6, "top_k": 20})
    async with in_memory(app) as client:
        await client.post("/v1/chat/completions", json=chat("one") | {"temperature": 0})
        await client.post("/v1/completions", json=completion("one") | {"max_tokens": 1})
    own, default = (request.sampling for request in backend.requests)
    assert (own.temperature, own.top_k) == (0, 20)
    assert (default.temperature, default.top_k) == (0.6, 20)


async def test_a_chat_completion() -> None:
    response = await post(chat("one two three"))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "one two three", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def test_a_completion() -> None:
    answer = (await post(completion("one two three", max_tokens=2))).json()
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [{"index": 0, "text": "one two", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def test_choices_of_several_prompts_are_in_order_and_prompts_count_once() -> None:
    answer = (await post(completion(["a b", "c d e"], n=2, max_tokens=2))).json()
    assert [(c["index"], c["text"], c["finish_reason"]) for c in answer["choices"]] == [
        (0, "a b", "stop"),
        (1, "b a", "stop"),
        (2, "c d", "length"),
        (3, "d e", "length"),
    ]
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 8


async def test_token_prompts() -> None:
    answer = (await post(completion([[7, 8], [9]]))).json()
    assert [choice["text"] for choice in answer["choices"]] == ["t7 t8", "t9"]


async def test_stop_strings_end_the_answer_and_are_not_in_it() -> None:
    for stop in ("two", ["e t", "x"], "ne tw"):
        text = (await post(completion("one two three", stop=stop))).json()["choices"][0]["text"]
        assert "one two".startswith(text)
        assert len(text) < len("one two")


async def test_cached_tokens_of_the_prompt() -> None:
    app, _ = await build()
    words = " ".join(f"w{i}" for i in range(40))
    async with in_memory(app) as client:
        usages = [
            (await client.post("/v1/completions", json=completion(words, cache_salt=salt))).json()
            for salt in ("x", "x", "y")
        ]
    cached = [usage["usage"]["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, 32, 0]


async def test_logprobs_of_a_chat() -> None:
    answer = (await post(chat("é b", logprobs=True, top_logprobs=2))).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["refusal"] is None
    first, second = logprobs["content"]
    assert first == {
        "token": "é",
        "logprob": -0.5,
        "bytes": [0xC3, 0xA9],
        "top_logprobs": [
            {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
            {"token": "é~1", "logprob": -1.0, "bytes": [0xC3, 0xA9, 0x7E, 0x31]},
        ],
    }
    assert second["token"] == " b"


async def test_logprobs_of_a_chat_without_alternatives() -> None:
    answer = (await post(chat("a", logprobs=True))).json()
    assert answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


async def test_logprobs_of_a_completion() -> None:
    answer = (await post(completion("ab cd", n=2, logprobs=2))).json()
    assert [choice["logprobs"] for choice in answer["choices"]] == [
        {
            "tokens": ["ab", " cd"],
            "token_logprobs": [-0.5, -0.5],
            "top_logprobs": [{"ab": -0.5, "ab~1": -1.0}, {" cd": -0.5, " cd~1": -1.0}],
            "text_offset": [0, 2],
        },
        {
            "tokens": ["cd", " ab"],
            "token_logprobs": [-0.5, -0.5],
            "top_logprobs": [{"cd": -0.5, "cd~1": -1.0}, {" ab": -0.5, " ab~1": -1.0}],
            "text_offset": [0, 2],
        },
    ]


async def test_the_backend_gets_unique_ids_that_begin_with_the_clients() -> None:
    app, backend = await build()
    async with in_memory(app) as client:
        for _ in range(2):
            response = await client.post(
                "/v1/completions", json=completion(["a", "b"]), headers={"X-Request-Id": "mine"}
            )
            assert response.headers["x-request-id"] == "mine"
    ids = [request.request_id for request in backend.requests]
    assert len(set(ids)) == 4
    assert all(one.startswith("mine-") for one in ids)


@pytest.mark.parametrize(
    ("fault", "status", "kind", "code"),
    [
        ("step_error", 500, "server_error", "step_failed"),
        ("unavailable", 503, "service_unavailable", "engine_stopped"),
        ("abort", 503, "service_unavailable", "engine_stopped"),
        ("ends_early", 500, "server_error", "step_failed"),
        ("crash", 500, "server_error", "internal_error"),
        ("cancel", 500, "server_error", "step_failed"),
    ],
)
async def test_a_fault_of_one_prompt_fails_the_request_and_ends_the_others(
    fault: str, status: int, kind: str, code: str
) -> None:
    app, backend = await build(options={"faults": {"boom": fault}})
    backend.hold(after_tokens=3)
    async with in_memory(app) as client:
        response = await client.post(
            "/v1/completions", json=completion(["a b c d", "boom b c d", "x y z z"])
        )
        assert response.status_code == status
        error = response.json()["error"]
        assert (error["type"], error["code"]) == (kind, code)
        assert "secret" not in response.text
        assert backend.live.value == 0
        backend.release()
        assert (await client.post("/v1/completions", json=completion())).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_told_with_a_time_to_retry(stream: bool) -> None:
    app, backend = await build(max_num_seqs=1, max_queued_requests=0)
    backend.hold()
    async with in_memory(app) as client:
        first = asyncio.create_task(client.post("/v1/completions", json=completion()))
        await backend.held.reaches(1)
        second = await client.post("/v1/completions", json=completion(stream=stream))
        assert second.status_code == 429
        assert second.headers["retry-after"] == "2"
        assert second.json()["error"]["code"] == "queue_full"
        backend.release()
        assert (await first).status_code == 200


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer wrong", "Basic dXNlcg==", "bearer é", "Bearer " + "x" * 99],
)
async def test_generation_needs_the_secret(given: str | None) -> None:
    app, backend = await build()
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    async with in_memory(app) as client:
        client.headers.pop("authorization")
        for path in ("/v1/chat/completions", "/v1/completions"):
            response = await client.post(path, content=b"{}", headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
    assert backend.requests == []


async def test_readiness_tells_which_attention_serves_and_why() -> None:
    app, _ = await build(attention_status=AttentionStatus("reference", "asked for", "reference"))
    async with in_memory(app) as client:
        ready = (await client.get("/ready")).json()
    assert ready["attention"] == {
        "path": "reference",
        "reason": "asked for",
        "wanted": "reference",
    }


async def test_health_and_readiness() -> None:
    app, backend = await build()
    async with in_memory(app) as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        ready = await client.get("/ready")
        assert ready.json() == {"status": "ready", "model": MODEL, "max_model_len": MAX_MODEL_LEN}
        app.state.draining = True
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200
        app.state.draining = False
        backend.healthy = False
        for path in ("/health", "/ready"):
            response = await client.get(path)
            assert response.status_code == 503
            assert response.json()["error"]["type"] == "service_unavailable"


async def test_metrics_of_the_registry() -> None:
    app, _ = await build()
    async with in_memory(app) as client:
        assert "pomona_steps_total 3.0" in (await client.get("/metrics")).text


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions/", "/docs", "/"])
async def test_unknown_paths(path: str) -> None:
    app, _ = await build()
    async with in_memory(app) as client:
        response = await client.post(path, json={})
    assert response.status_code == 404
    assert path in response.json()["error"]["message"]


def test_a_secret_is_needed() -> None:
    backend: Backend = FakeBackend()
    with pytest.raises(ValueError, match="secret"):
        build_replica_app(
            backend=backend,
            model=ModelInfo("m", 10),
            secret="",
            registry=CollectorRegistry(),
            on_failure=lambda error_type: None,
            max_body_bytes=10,
            keep_alive_interval_s=1,
        )


async def test_bad_input_is_refused_and_the_server_stays_alive() -> None:
    app, backend = await build()
    async with client_of(app) as client:
        for case in CASES:
            check_refused(case, await client.post(case.path, content=case.body))
        told_by_the_backend = sum(not case.parsing and case.status == 400 for case in CASES)
        assert len(backend.requests) == told_by_the_backend
        answer = (await client.post("/v1/completions", json=completion("still here"))).json()
        assert answer["choices"][0]["text"] == "still here"


def check_refused(case: BadInput, response: httpx.Response) -> None:
    assert response.status_code == case.status, case.name
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == (case.type, case.param, case.code)
    for part in case.says:
        assert part in error["message"], case.name


async def test_a_body_of_unknown_length_is_cut_off_at_the_limit() -> None:
    async def chunks() -> Any:
        for _ in range(20):
            yield b"x" * (MAX_BODY_BYTES // 10)

    app, _ = await build()
    async with client_of(app) as client:
        response = await client.post("/v1/completions", content=chunks())
        assert response.status_code == 413
        assert str(MAX_BODY_BYTES) in response.json()["error"]["message"]
        assert (await client.get("/health")).status_code == 200
