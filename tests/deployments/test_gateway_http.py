"""The gateway's routes, who is let in, and what is refused before a replica hears of it."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import threading
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from starlette.types import Message, Receive, Scope, Send

from deployments.backend import AttentionStatus
from deployments.gateway.access.api_keys import KeyRing
from deployments.gateway.access.authentication import AuthenticationMiddleware
from deployments.http.errors import ApiError
from deployments.protocol import parse_request, parsing
from tests.support.deployments.answers import closed_port, error_of
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    failures,
    fake_replica,
    gateway,
    replica_at,
)

PATH = "/v1/chat/completions"


async def test_models_are_those_of_the_replicas() -> None:
    replicas = [replica_at("http://a"), replica_at("http://b", name="b", model="org/other")]
    async with gateway(replicas) as running:
        listed = (await running.client.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [one["id"] for one in listed["data"]] == ["demo", "org/other"]
        assert listed["data"][0]["max_model_len"] == 4096
        assert (await running.client.get("/v1/models/org/other")).json()["id"] == "org/other"
        missing = await running.client.get("/v1/models/nope")
        assert missing.status_code == 404
        assert error_of(missing)["code"] == "model_not_found"


async def test_a_model_answers_to_its_other_names() -> None:
    config = {"model": "hub/demo", "aliases": ["gpt-4o"]}
    async with (
        fake_replica(**config) as replica,
        gateway([replace(replica, other_names=("hub/demo", "gpt-4o"))]) as running,
    ):
        for name in ("demo", "hub/demo", "gpt-4o"):
            answer = await running.client.post(PATH, json={**CHAT, "model": name})
            assert answer.json()["model"] == name
            assert (await running.client.get(f"/v1/models/{name}")).json()["id"] == "demo"
        refused = await running.client.post(PATH, json={**CHAT, "model": "gpt-4"})
        assert error_of(refused)["code"] == "model_not_found"
        listed = (await running.client.get("/v1/models")).json()["data"]
        assert [one["id"] for one in listed] == ["demo"]
        assert 'model="gpt-4o"' not in (await running.client.get("/metrics")).text


async def test_ready_asks_a_replica_and_health_does_not() -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([replica_at(closed_port()), one]) as running:
        assert (await running.client.get("/ready")).json() == {"status": "ready"}
        backend.healthy = False
        response = await running.client.get("/ready")
        assert response.status_code == 503
        assert error_of(response)["code"] == "not_ready"
        assert (await running.client.get("/health")).json() == {"status": "ok"}


async def test_ready_does_not_wait_for_replicas_that_hang() -> None:
    async with hanging() as one, hanging() as two, fake_replica() as fine:
        replicas = [replica_at(url, name=url) for url in (one, two)] + [fine]
        async with gateway(replicas, connect_timeout_s=40) as running:
            assert (await running.client.get("/ready")).json() == {"status": "ready"}


@asynccontextmanager
async def hanging() -> AsyncIterator[str]:
    """Takes connections and never answers."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_draining_gateway_is_not_ready_but_serves() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        running.app.state.draining = True
        response = await running.client.get("/ready")
        assert (response.status_code, error_of(response)["code"]) == (503, "draining")
        assert response.headers["retry-after"] == "1"
        assert (await running.client.post(PATH, json=CHAT)).status_code == 200
        assert (await running.client.get("/health")).status_code == 200


async def test_ready_tells_which_attention_serves_but_not_why() -> None:
    backend = FakeBackend()
    backend.attention = AttentionStatus("reference", "the metal kernels failed: a secret", "metal")
    async with fake_replica(backend) as one, gateway([one]) as running:
        ready = (await running.client.get("/ready")).json()
    assert ready == {"status": "ready", "attention": {"path": "reference"}}


async def test_targets_are_every_gateway_and_replica() -> None:
    async with gateway([replica_at("http://10.0.0.2:1234")]) as running:
        targets = (await running.client.get("/targets")).json()
    assert targets == [
        {
            "targets": ["10.0.0.1:9000"],
            "labels": {
                "__metrics_path__": "/metrics",
                "component": "gateway",
                "replica": "gateway-1",
                "node": "10.0.0.1",
            },
        },
        {
            "targets": ["10.0.0.2:1234"],
            "labels": {
                "__metrics_path__": "/metrics",
                "component": "engine",
                "model": "demo",
                "replica": "replica-1",
                "node": "10.0.0.2",
            },
        },
    ]


BAD_REQUESTS: list[tuple[dict[str, object], int, str | None]] = [
    ({"content": b"{"}, 400, None),
    ({"content": b"\xff\xfe"}, 400, None),
    ({"json": {"model": "demo"}}, 400, "messages"),
    ({"json": {**CHAT, "colour": "red"}}, 400, "colour"),
    ({"json": {**CHAT, "temperature": 9}}, 400, "temperature"),
    ({"json": {**CHAT, "model": "nope"}}, 404, "model"),
    ({"json": {**CHAT, "priority": -5}}, 400, "priority"),
    ({"content": b" " * 5000}, 413, None),
]


async def test_bad_requests_stop_at_the_gateway() -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([one], max_body_bytes=4096) as running:
        for request, status, param in BAD_REQUESTS:
            response = await running.client.post(PATH, **request)
            assert (response.status_code, error_of(response)["param"]) == (status, param)
        assert failures(running) == {("unknown", "invalid_request_error"): len(BAD_REQUESTS)}
        assert (await running.client.post(PATH, json={**CHAT, "priority": 0})).status_code == 200
    assert len(backend.requests) == 1


async def test_priorities_are_for_whom_the_settings_trust() -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one:
        async with gateway([one]) as running:
            refused = await running.client.post(PATH, json={**CHAT, "priority": 1})
        async with gateway([one], allow_priority=True) as running:
            await running.client.post(PATH, json={**CHAT, "priority": 1})
    assert "gateway.allow_priority" in error_of(refused)["message"]
    assert [request.priority for request in backend.requests] == [1]


async def test_a_request_asks_for_a_bounded_number_of_answers() -> None:
    backend = FakeBackend()
    async with (
        fake_replica(backend) as replica,
        gateway([replica], max_sequences_per_request=6) as running,
    ):
        for num_prompts, n in ((7, 1), (2, 4), (1, 7)):
            body = {"model": "demo", "prompt": ["a b"] * num_prompts, "n": n}
            refused = await running.client.post("/v1/completions", json=body)
            assert (refused.status_code, error_of(refused)["param"]) == (400, "n")
            told = f"{num_prompts} prompts times n = {n} are {num_prompts * n} sequences"
            assert str(error_of(refused)["message"]).startswith(told)
            assert "at most 6" in str(error_of(refused)["message"])
        assert (await running.client.post(PATH, json={**CHAT, "n": 7})).status_code == 400
        assert not backend.requests
        body = {"model": "demo", "prompt": ["a b"] * 3, "n": 2}
        answer = await running.client.post("/v1/completions", json=body)
        assert len(answer.json()["choices"]) == 6


async def test_a_request_id_that_a_log_could_misread_is_refused() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        refused = await running.client.post(PATH, json=CHAT, headers={"X-Request-Id": "a b;c"})
        assert refused.status_code == 400
        assert error_of(refused)["param"] == "X-Request-Id"
        # Probes carry whatever their sender likes.
        probe = await running.client.get("/health", headers={"X-Request-Id": "a b;c"})
        assert probe.status_code == 200


async def test_large_bodies_are_parsed_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[bool] = []

    def parse(path: str, body: bytes, context: bytes) -> object:
        threads.append(threading.current_thread() is threading.main_thread())
        return parse_request(path, body, context)

    monkeypatch.setattr(parsing, "parse_request", parse)
    large = {**CHAT, "user": "x" * parsing.MAX_BYTES_ON_THE_LOOP}
    async with fake_replica() as one, gateway([one]) as running:
        for body in (CHAT, large):
            assert (await running.client.post(PATH, json=body)).status_code == 200
    # Each body by the gateway, then by the replica.
    assert threads == [True, True, False, False]


async def test_a_body_of_unannounced_size_is_cut_off_at_the_limit() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * 4096

    async with gateway([replica_at("http://a")], max_body_bytes=10_000) as running:
        response = await running.client.post(PATH, content=chunks())
    assert response.status_code == 413


SENT = json.dumps(CHAT).encode()
ZIPPED = gzip.compress(SENT, mtime=0)


@pytest.mark.parametrize(
    ("encoding", "body", "status", "told"),
    [
        ("gzip", ZIPPED, 200, ""),
        ("Deflate", zlib.compress(SENT), 200, ""),
        ("identity", SENT, 200, ""),
        ("br", b"", 415, 'must be gzip, deflate or identity, not "br"'),
        ("gzip", SENT, 400, "not gzip, as Content-Encoding says"),
        ("gzip", ZIPPED[:-9], 400, "not gzip"),
        ("gzip", ZIPPED + b"more", 400, "not gzip"),
        ("gzip", gzip.compress(b" " * 100_000, mtime=0), 413, "larger than 10000 bytes"),
    ],
    ids=["gzip", "deflate", "identity", "br", "plain", "cut", "more", "large"],
)
async def test_a_body_is_decoded_within_the_limit(
    encoding: str, body: bytes, status: int, told: str
) -> None:
    async with (
        fake_replica(FakeBackend()) as one,
        gateway([one], max_body_bytes=10_000) as running,
    ):
        headers = {"Content-Encoding": encoding}
        response = await running.client.post(PATH, content=body, headers=headers)
    assert response.status_code == status
    assert told in response.text.replace('\\"', '"')


async def test_unknown_urls_and_methods_have_openais_shape() -> None:
    async with gateway([]) as running:
        missing = await running.client.get("/v2/models")
        wrong = await running.client.get(PATH)
    assert (missing.status_code, error_of(missing)["code"]) == (404, "unknown_url")
    assert failures(running) == {("unknown", "invalid_request_error"): 2}
    assert (wrong.status_code, error_of(wrong)["code"]) == (405, "method_not_allowed")


async def test_before_the_first_replica_the_answer_is_come_back_later() -> None:
    async with gateway([]) as running:
        response = await running.client.post(PATH, json=CHAT)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert (await running.client.get("/v1/models")).json()["data"] == []


async def test_a_request_id_is_made_or_echoed() -> None:
    async with gateway([]) as running:
        given = await running.client.get("/health", headers={"X-Request-Id": "abc-123"})
        made = await running.client.get("/health")
        refused = await running.client.post(PATH, json=CHAT, headers={"X-Request-Id": "abc-4"})
    assert given.headers["x-request-id"] == "abc-123"
    assert made.headers["x-request-id"].startswith("req-")
    assert refused.headers["x-request-id"] == "abc-4"


async def test_keys_guard_the_api_and_nothing_else() -> None:
    async with fake_replica() as one, gateway([one], keys=["good", "also-good"]) as running:
        for value, status in (
            (None, 401),
            ("Bearer wrong", 401),
            ("Bearer", 401),
            ("Basic good", 401),
            ("Bearer good", 200),
            ("bearer also-good", 200),
        ):
            headers = {} if value is None else {"Authorization": value}
            response = await running.client.post(PATH, json=CHAT, headers=headers)
            assert response.status_code == status, value
            if status == 401:
                assert error_of(response)["code"] == "invalid_api_key"
        assert failures(running) == {("unknown", "invalid_request_error"): 4}
        # Load balancers and Prometheus have no key.
        for path in ("/health", "/ready", "/metrics", "/targets"):
            assert (await running.client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("api.localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("rebound.example.com:8000", 403),
        ("127.0.0.1.example.com", 403),
        ("localhost.example.com", 403),
        ("192.168.1.7:8000", 403),
        ("[", 403),
        ("", 403),
    ],
)
async def test_without_keys_a_browser_cannot_be_lured_here_under_another_name(
    host: str, status: int
) -> None:
    async with fake_replica() as one:
        async with gateway([one]) as running:
            response = await running.client.get("/v1/models", headers={"Host": host})
            assert response.status_code == status
            if status == 403:
                assert error_of(response)["code"] == "host_not_allowed"
                assert "gateway.api_keys_file" in error_of(response)["message"]
                assert failures(running) == {("unknown", "permission_error"): 1}
        key = {"Authorization": "Bearer key", "Host": host}
        async with gateway([one], keys=["key"]) as running:
            assert (await running.client.get("/v1/models", headers=key)).status_code == 200


@pytest.mark.parametrize(
    ("client", "headers", "admitted"),
    [
        (("127.0.0.1", 5), {}, True),
        (("::1", 5), {}, True),
        (("192.168.1.7", 5), {}, False),
        (("127.0.0.1", 5), {"X-Forwarded-For": "192.168.1.7"}, False),
        (("127.0.0.1", 5), {"Forwarded": "for=192.168.1.7"}, False),
        (None, {}, False),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/health"])
async def test_without_keys_only_this_machine_is_served(
    client: tuple[str, int] | None, headers: dict[str, str], admitted: bool, path: str
) -> None:
    reached: list[str] = []
    sent: list[Message] = []
    refused: list[ApiError] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["path"])

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "path": path,
        "client": client,
        "headers": [
            (name.lower().encode(), value.encode())
            for name, value in {"Host": "localhost", **headers}.items()
        ],
    }
    guarded = AuthenticationMiddleware(
        app, keys=KeyRing([]), on_refused=lambda scope, error: refused.append(error)
    )
    await guarded(scope, receive, send)
    assert reached == ([path] if admitted else [])
    if not admitted:
        assert sent[0]["status"] == 403
        assert [error.code for error in refused] == ["loopback_only"]


async def test_the_gateways_metrics_count_what_it_sees() -> None:
    async with fake_replica() as one, gateway([one], keys=["key"]) as running:
        key = {"Authorization": "Bearer key"}
        for body in (CHAT, {**CHAT, "stream": True}, {**CHAT, "model": "nope"}, {**CHAT, "n": 0}):
            await running.client.post(PATH, json=body, headers=key)
        await running.client.post(PATH, json=CHAT)
        text = (await running.client.get("/metrics")).text
    labels = 'model="demo",node="10.0.0.1",replica="gateway-1",stage="gateway"'
    assert f"pomona_e2e_request_latency_seconds_count{{{labels}}} 2.0" in text
    assert f"pomona_time_to_first_token_seconds_count{{{labels}}} 1.0" in text
    labels = (
        'error_type="invalid_request_error",model="unknown",node="10.0.0.1",replica="gateway-1"'
    )
    assert f"pomona_request_failure_total{{{labels}}} 3.0" in text


def test_a_gateway_never_loads_mlx() -> None:
    program = "import sys, deployments.app; print(sorted(m for m in sys.modules if 'mlx' in m))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.stdout.strip(), run.returncode) == ("[]", 0), run.stderr
