"""What bounds a request before a replica has it: deadline, disconnect, bytes and turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from deployments.gateway import relayed_route
from deployments.gateway.access.api_keys import ApiKey, KeyRing
from deployments.gateway.body_budget import BodyBudget
from deployments.gateway.relay.relay import relay
from deployments.gateway.relay.request import RelayedRequest
from deployments.gateway.responses.memory import MemoryStore
from deployments.gateway.responses.store import StoredResponse
from deployments.http.errors import ApiError
from deployments.protocol import parsing
from deployments.protocol.background import Background
from deployments.settings import GatewaySettings
from tests.support.deployments.gateway_harness import (
    CHAT,
    Running,
    fake_replica,
    gateway,
    outcomes,
)
from tests.support.deployments.raw_client import connected

KEYS = KeyRing([ApiKey.of("alice", "alices"), ApiKey.of("bob", "bobs")])
LONG = "word " * (parsing.MAX_BYTES_ON_THE_LOOP // 5)
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}]},
    "/v1/completions": {"prompt": LONG},
    "/v1/responses": {"input": LONG, "store": False},
    "/v1/messages": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1},
    "/v1/embeddings": {"input": LONG},
    "/v1/rerank": {"query": "one", "documents": [LONG]},
    "/tokenize": {"prompt": LONG},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": LONG}]},
    "/v1/responses/input_tokens": {"input": LONG},
}
T = TypeVar("T")


class Recorder(Background):
    """Works at once, and remembers for whom."""

    def __init__(self) -> None:
        super().__init__("recorder")
        self.tenants: list[str] = []

    async def run(self, work: Callable[[], T], *, tenant: str = "") -> T:
        self.tenants.append(tenant)
        return work()


class Line(Background):
    """A thread that is busy until it is released."""

    def __init__(self) -> None:
        super().__init__("line")
        self._release = threading.Event()
        self._waiting = asyncio.Semaphore(0)
        self.busy = asyncio.ensure_future(super().run(self._keep_busy, tenant="busy"))
        self.is_busy = threading.Event()

    def _keep_busy(self) -> None:
        self.is_busy.set()
        self._release.wait()

    async def run(self, work: Callable[[], T], *, tenant: str = "") -> T:
        self._waiting.release()
        return await super().run(work, tenant=tenant)

    async def one_waits(self) -> None:
        async with asyncio.timeout(10):
            await self._waiting.acquire()

    @property
    def is_empty(self) -> bool:
        return self._turns.wait_s(0.0) is None

    async def release(self) -> None:
        self._release.set()
        await self.busy


@pytest.fixture
async def line(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Line]:
    made = Line()
    monkeypatch.setattr(parsing, "_LARGE_BODIES", made)
    await asyncio.to_thread(made.is_busy.wait)
    yield made
    await made.release()


def head(path: str, length: int, key: str = "alices") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def held(running: Running) -> int:
    return running.bodies.num_bytes


@pytest.mark.parametrize("path", BODIES)
async def test_large_bodies_wait_in_the_line_of_their_own_key(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(parsing, "_LARGE_BODIES", recorder)
    async with fake_replica() as one, gateway([one], keys=KEYS) as running:
        headers = {"Authorization": "Bearer bobs"}
        body = {"model": "demo", **BODIES[path]}
        await running.client.post(path, json=body, headers=headers)
    # The gateway's, and the replica's where the request got as far as that.
    assert set(recorder.tenants) == {"bob"}
    assert len(recorder.tenants) >= (1 if "completions" not in path else 2)


@pytest.mark.parametrize("path", BODIES)
async def test_a_deadline_that_passes_in_the_line_is_the_deadlines_error(
    path: str, line: Line
) -> None:
    async with gateway([], keys=KEYS, request_timeout_s=0.05) as running:
        body = {"model": "demo", **BODIES[path]}
        headers = {"Authorization": "Bearer alices"}
        response = await running.client.post(path, json=body, headers=headers)
        assert response.status_code == 504
        assert "0.05 seconds" in response.text
        assert line.is_empty
        assert held(running) == 0


async def test_a_client_that_leaves_the_line_costs_nothing_more(line: Line) -> None:
    async with fake_replica() as one, gateway([one], keys=KEYS) as running:
        asking = asyncio.create_task(
            running.client.post(
                "/v1/chat/completions",
                json={"model": "demo", **BODIES["/v1/chat/completions"]},
                headers={"Authorization": "Bearer alices"},
            )
        )
        await line.one_waits()
        assert held(running) > parsing.MAX_BYTES_ON_THE_LOOP
        asking.cancel()
        async with asyncio.timeout(10):
            while held(running):
                await running.client.get("/health")
        assert line.is_empty
        assert await outcomes(running) == {("unknown", "client_gone"): 1}


async def test_a_replica_forgets_a_body_whose_gateway_has_left(line: Line) -> None:
    async with fake_replica() as one, connected(one.url) as raw:
        body = b'{"model": "demo", "prompt": "' + LONG.encode() + b'"}'
        secret = f"Bearer {one.secret}".encode()
        sent = head("/v1/completions", len(body)).replace(b"Bearer alices", secret)
        await raw.send(sent + body)
        await line.one_waits()
        assert not line.is_empty
        raw.writer.close()
        async with asyncio.timeout(10):
            while not line.is_empty:
                await asyncio.sleep(0)


class SilentStore(MemoryStore):
    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_look_up_ends_at_the_deadline() -> None:
    store = SilentStore(max_bytes=1 << 20, max_bytes_per_key=1 << 20, max_age_s=60.0)
    async with gateway([], responses=store, request_timeout_s=0.05) as running:
        body = {"model": "demo", "input": "one", "previous_response_id": "resp_1"}
        response = await running.client.post("/v1/responses", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")


async def test_a_deadline_counts_from_the_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    relayed: list[RelayedRequest] = []

    async def keep(request: RelayedRequest) -> None:
        relayed.append(request)
        await relay(request)

    monkeypatch.setattr(relayed_route, "relay", keep)
    async with fake_replica() as one, gateway([one], request_timeout_s=100.0) as running:
        assert (await running.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        [request] = relayed
        now = asyncio.get_running_loop().time()
        until = replace(request, arrived=request.arrived - 60.0).in_time.when()
        assert until is not None
        assert until - now < 41.0


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_over_the_budget_is_refused_before_it_is_read(path: str) -> None:
    sizes = {"max_body_bytes": 2048, "max_total_body_bytes": 4096}
    async with gateway([], keys=KEYS, **sizes) as running, connected(running.url) as raw:
        await raw.send(head(path, 2000) + b"{")
        async with asyncio.timeout(10):
            while held(running) < 2000:
                await running.client.get("/health")
        # Alice has what leaves as much for others; what another key sends fits.
        over = {"Authorization": "Bearer alices"}
        response = await running.client.post(path, content=b"x" * 500, headers=over)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.headers["x-should-retry"] == "true"
        assert "gateway.max_total_body_bytes" in response.text
        other = {"Authorization": "Bearer bobs"}
        response = await running.client.post(path, content=b"x" * 500, headers=other)
        assert response.status_code == 400
        await raw.send(b"x" * 1999)
        assert (await raw.response())[0] == 400
        assert held(running) == 0
        response = await running.client.post(path, content=b"x" * 500, headers=over)
        assert response.status_code == 400


async def test_a_body_of_unknown_length_counts_as_it_comes() -> None:
    async def chunks(sizes: Sequence[int]) -> AsyncIterator[bytes]:
        for size in sizes:
            yield b"x" * size

    sizes = {"max_body_bytes": 2048, "max_total_body_bytes": 2048}
    async with gateway([], keys=KEYS, **sizes) as running, connected(running.url) as raw:
        await raw.send(head("/tokenize", 1000, "bobs") + b"{")
        async with asyncio.timeout(10):
            while held(running) < 1000:
                await running.client.get("/health")
        for sent, status in (([250, 250], 400), ([500, 500], 503)):
            response = await running.client.post(
                "/tokenize", content=chunks(sent), headers={"Authorization": "Bearer alices"}
            )
            assert response.status_code == status
            assert held(running) == 1000


def test_a_key_leaves_as_much_as_it_takes() -> None:
    budget = BodyBudget(100)
    with budget.request("alice") as hold, budget.request("bob") as others:
        hold(50)
        hold(40)
        with pytest.raises(ApiError, match="100 bytes at most") as refused:
            hold(51)
        assert refused.value.code == "too_many_bodies"
        others(25)
        with pytest.raises(ApiError):
            others(26)
    with budget.request("") as hold:
        hold(100)
        assert budget.num_bytes == 100
    assert budget.num_bytes == 0


def test_the_largest_body_has_to_fit() -> None:
    with pytest.raises(ValueError, match=r"at least max_body_bytes \(4096\), not 2048"):
        GatewaySettings(max_body_bytes=4096, max_total_body_bytes=2048)
