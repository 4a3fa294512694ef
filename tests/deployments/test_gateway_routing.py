from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import Message

from deployments.gateway.relay.client_response import ClientResponse, Head
from deployments.gateway.relay.failures import timed_out
from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.routing import LeastOutstandingTokens, PrefixAffinity, Work
from deployments.http.sse import KEEP_ALIVE
from deployments.protocol import StreamForm
from deployments.settings import RoutingSettings
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import CHAT, fake_replica, gateway


class Remembering(LeastOutstandingTokens):
    def __init__(self) -> None:
        self.asked: list[Work] = []

    def choose(self, work: Work, candidates: Sequence[ReplicaState]) -> ReplicaState:
        self.asked.append(work)
        return super().choose(work, candidates)


async def works_of(*bodies: dict[str, Any], session: str | None = None) -> list[Work]:
    router = Remembering()
    headers = {"X-Session-Id": session} if session else {}
    async with (
        fake_replica() as replica,
        gateway([replica], router=router, session_header="X-Session-Id") as running,
    ):
        for body in bodies:
            path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
            answer = await running.client.post(path, json=body, headers=headers)
            assert answer.status_code == 200
    return router.asked


async def test_a_router_is_told_what_a_request_begins_with() -> None:
    prompt = "word " * 200
    one, other = await works_of(
        {"model": "demo", "prompt": prompt + "one", "max_tokens": 3, "n": 2},
        {"model": "demo", "prompt": prompt + "two", "max_tokens": 3},
    )
    assert one.affinity.keys
    assert one.affinity.keys == other.affinity.keys
    assert (one.num_sequences, other.num_sequences) == (2, 1)
    assert one.tokens - other.tokens == 3


async def test_a_session_comes_from_the_configured_header() -> None:
    long = {**CHAT, "messages": [{"role": "user", "content": "word " * 400}]}
    mine = await works_of(CHAT, long, session="mine")
    yours = await works_of(CHAT, session="yours")
    assert len({work.affinity for work in mine}) == 1
    assert mine[0].affinity != yours[0].affinity
    assert (await works_of(CHAT))[0].affinity.keys == ()


async def test_a_record_is_told_how_fast_a_stream_was(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds: list[tuple[str, int, float]] = []

    def streamed(state: ReplicaState, work: Work, num_tokens: int, seconds: float) -> None:
        speeds.append((state.replica_id, num_tokens, seconds))

    monkeypatch.setattr(ReplicaState, "streamed", streamed)
    async with (
        fake_replica(FakeBackend(), options={"delay_s": 0.001}) as replica,
        gateway([replica]) as running,
    ):
        body = {"model": "demo", "prompt": "one two three four five", "stream": True}
        await running.client.post("/v1/completions", json=body)
        await running.client.post("/v1/completions", json=body | {"stream": False})
    # Not that of an answer that is whole.
    [(name, num_tokens, seconds)] = speeds
    assert name == replica.replica_id
    # Five words, of which the first is where the time begins.
    assert num_tokens == 4
    assert seconds >= 4 * 0.001


async def test_requests_that_begin_alike_meet_the_same_replica() -> None:
    backends = [FakeBackend() for _ in range(3)]
    router = PrefixAffinity(RoutingSettings(weigh_capacity=False, free_tokens=10**9))
    async with (
        fake_replica(backends[0], name="replica-0") as first,
        fake_replica(backends[1], name="replica-1") as second,
        fake_replica(backends[2], name="replica-2") as third,
        gateway([first, second, third], router=router) as running,
    ):
        for number in range(48):
            prompt = f"document-{number % 16:02} " * 60 + f"question {number}"
            body = {"model": "demo", "prompt": prompt, "max_tokens": 1}
            assert (await running.client.post("/v1/completions", json=body)).status_code == 200
    homes = [{request.prompt[:11] for request in backend.requests} for backend in backends]
    assert sum(map(len, homes)) == 16
    assert all(homes)


async def test_what_comes_before_the_first_content_is_none() -> None:
    async def send(message: Message) -> None: ...

    client = ClientResponse(send, StreamForm())
    await client.begin(Head(200, ()))
    await client.events(KEEP_ALIVE)
    assert not client.has_content
    await client.events(KEEP_ALIVE + b"data: 1\n\n")
    assert client.has_content


async def test_a_response_that_could_not_be_begun_is_begun_by_the_error() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            raise TimeoutError
        sent.append(message)

    client = ClientResponse(send, StreamForm())
    with pytest.raises(TimeoutError):
        await client.begin(Head(200, ()))
    await client.fail(timed_out(1))
    assert [message.get("status") for message in sent] == [504, None]
    assert client.is_complete
