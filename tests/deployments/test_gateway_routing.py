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


HEADERS = RoutingSettings().session_header


async def works_of(*bodies: dict[str, Any], **headers: str) -> list[Work]:
    """``headers`` with _ for -."""
    router = Remembering()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        fake_replica() as replica,
        gateway([replica], router=router, session_header=HEADERS) as running,
    ):
        for body in bodies:
            path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
            path = "/v1/messages" if "metadata" in body else path
            answer = await running.client.post(path, json=body, headers=sent)
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


@pytest.mark.parametrize(
    "name", ["X_Session_Id", "x_claude_code_session_id", "session_id", "thread_id"]
)
async def test_a_session_comes_from_a_configured_header(name: str) -> None:
    long = {**CHAT, "messages": [{"role": "user", "content": "word " * 400}]}
    mine = await works_of(CHAT, long, **{name: "mine"})
    yours = await works_of(CHAT, **{name: "yours"})
    assert mine[0].affinity.session == mine[1].affinity.session
    assert mine[0].affinity.session is not None
    assert len(mine[1].affinity.keys) > 1
    assert mine[0].affinity != yours[0].affinity
    assert (await works_of(CHAT))[0].affinity.session is None


async def test_of_several_marks_of_a_session_the_first_counts() -> None:
    keyed = {**CHAT, "prompt_cache_key": "one"}
    first = await works_of(keyed, {**keyed, "prompt_cache_key": "two"}, x_session_id="mine")
    assert first[0].affinity == first[1].affinity
    both = await works_of(CHAT, x_session_id="mine", thread_id="another")
    assert both[0].affinity == first[0].affinity
    (by_key,) = await works_of(keyed, x_session_id="")
    assert by_key.affinity.session is not None
    assert by_key.affinity != first[0].affinity


async def test_a_user_of_the_messages_api_is_a_session() -> None:
    asked = {**CHAT, "max_tokens": 4, "metadata": {"user_id": "session_1"}}
    other = {**asked, "metadata": {"user_id": "session_2"}}
    (one, again, another) = await works_of(asked, asked, other)
    assert one.affinity.session is not None
    assert one.affinity == again.affinity != another.affinity
    (by_header,) = await works_of(asked, x_claude_code_session_id="session_2")
    assert by_header.affinity == another.affinity


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


async def test_where_a_prompt_was_known_is_logged_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = PrefixAffinity(RoutingSettings())
    body = {"model": "demo", "prompt": "word " * 200, "max_tokens": 1}
    caplog.set_level("INFO")
    async with fake_replica() as replica, gateway([replica], router=router) as running:
        for _ in range(3):
            await running.client.post("/v1/completions", json=body)
        metrics = (await running.client.get("/metrics")).text
    counts = {
        known: float(line.split()[-1])
        for line in metrics.splitlines()
        if line.startswith("pomona_prefix_placements_total")
        for known in ("unknown", "here")
        if f'known="{known}"' in line
    }
    assert counts == {"unknown": 1.0, "here": 2.0}
    lines = [record.getMessage() for record in caplog.records if "POST /v1" in record.getMessage()]
    told = [line.partition("prefix_known=")[2].split()[0] for line in lines]
    assert told == ["unknown", "here", "here"]


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
