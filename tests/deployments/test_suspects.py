"""Who is to blame for the fall of replicas, and who has to wait for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.fleet.directory import Replica
from deployments.gateway.relay.suspects import (
    MAX_IN_LINE,
    MAX_LOST,
    PAST_AFTER,
    SETTLED_AFTER,
    TOGETHER,
    Suspect,
    Suspects,
)
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    gateway,
    nowhere,
    replica_app,
    replica_at,
    serving,
)

A, B, C = (
    nowhere("a"),
    nowhere("b"),
    nowhere("c"),
)


@dataclass
class Fleet:
    """Requests on replicas that a test lets fall."""

    suspects: Suspects = field(default_factory=Suspects)
    on: dict[Suspect, ExitStack] = field(default_factory=dict)

    def start(self, requests: Iterable[Suspect], replica: Replica = A) -> None:
        for request in requests:
            assert self.suspects.has_place(request, replica)
            self.on[request] = ExitStack()
            self.on[request].enter_context(self.suspects.request(request, replica))

    def fall(self, requests: Sequence[Suspect], replica: Replica) -> None:
        for request in requests:
            self.suspects.lost(request, replica)
            self.on.pop(request).close()

    def go_on(self, request: Suspect, num_tokens: int) -> None:
        self.suspects.went_on(request, request.progress + num_tokens)


def fleet(num_requests: int, progress: int) -> tuple[Fleet, list[Suspect]]:
    """All of the requests are on A, and as far as that."""
    made, requests = Fleet(), [Suspect() for _ in range(num_requests)]
    made.start(requests, A)
    for request in requests:
        made.go_on(request, progress)
    return made, requests


@pytest.mark.parametrize("progress", [0, 7])
def test_who_was_at_both_falls_and_not_past_the_first_is_to_blame(progress: int) -> None:
    fallen, [culprit, past, elsewhere, *_] = fleet(3, progress)
    native = Suspect()
    fallen.start([native], B)
    fallen.go_on(native, progress)
    fallen.fall([past, culprit, elsewhere], A)
    fallen.start([culprit, past], B)
    fallen.go_on(culprit, PAST_AFTER - 1)
    fallen.go_on(past, PAST_AFTER)
    fallen.start([elsewhere], C)
    fallen.fall([past, native, culprit], B)
    assert [r.is_blamed for r in (culprit, past, native, elsewhere)] == [True, False, False, False]


def test_a_loss_long_ago_says_nothing() -> None:
    fallen, [request] = fleet(1, 5)
    for _ in range(MAX_LOST - 1):
        fallen.fall([request], A)
        assert not request.is_blamed
        fallen.start([request], A)
        fallen.go_on(request, SETTLED_AFTER)
    fallen.fall([request], A)
    assert request.is_blamed


def test_who_was_alone_at_both_falls_is_to_blame_until_it_is_acquitted() -> None:
    fallen, [request] = fleet(1, 5)
    fallen.fall([request], A)
    fallen.start([request], B)
    fallen.go_on(request, SETTLED_AFTER - 1)
    fallen.fall([request], B)
    assert request.is_blamed


def test_among_many_without_a_token_nobody_can_tell() -> None:
    for num_requests in (TOGETHER, TOGETHER + 1):
        fallen, requests = fleet(num_requests, 0)
        fallen.fall(requests, A)
        fallen.start(requests, B)
        fallen.fall(requests, B)
        assert {request.is_blamed for request in requests} == {num_requests == TOGETHER}


def test_who_stays_when_a_step_fails_is_not_among_the_lost() -> None:
    fallen, [lost, stays] = fleet(2, 5)
    fallen.fall([lost], A)
    fallen.go_on(stays, 1)
    fallen.start([lost], B)
    fallen.go_on(lost, SETTLED_AFTER)
    fallen.fall([stays], A)
    fallen.start([stays], B)
    fallen.fall([lost, stays], B)
    assert [lost.is_blamed, stays.is_blamed] == [False, True]


def test_streams_enter_a_replica_a_few_at_a_time_until_each_is_past_its_token() -> None:
    fallen, requests = fleet(TOGETHER + 2, 5)
    fallen.fall(requests, A)
    first, *_ = requests
    fallen.start(requests[:TOGETHER], B)
    waiting = requests[TOGETHER]
    assert not fallen.suspects.has_place(waiting, B)
    assert fallen.suspects.has_place(waiting, C)
    # New requests, and those without a token, wait for nobody.
    fallen.start([Suspect()], B)
    fallen.go_on(first, PAST_AFTER - 1)
    assert not fallen.suspects.has_place(waiting, B)
    fallen.go_on(first, 1)
    fallen.start([waiting], B)
    assert not fallen.suspects.has_place(requests[-1], B)
    fallen.on.pop(waiting).close()
    assert fallen.suspects.has_place(requests[-1], B)


@pytest.mark.parametrize(
    ("num_requests", "progress"), [(2 * TOGETHER, SETTLED_AFTER), (MAX_IN_LINE + 1, 1)]
)
def test_settled_streams_and_many_do_not_wait_and_a_culprit_among_them_is_found_at_its_third(
    num_requests: int, progress: int
) -> None:
    fallen, requests = fleet(num_requests, progress)
    fallen.fall(requests, A)
    fallen.start(requests, B)
    fallen.fall(requests, B)
    assert not any(request.is_blamed for request in requests)
    few = requests[:TOGETHER]
    fallen.start(few, C)
    assert not fallen.suspects.has_place(requests[-1], C)
    fallen.fall(few, C)
    assert all(request.is_blamed for request in few)
    assert not any(request.is_blamed for request in requests[TOGETHER:])


def test_kinds_of_requests_are_judged_apart() -> None:
    fallen, requests = fleet(3 * TOGETHER, 0)
    waiting, beginning, settled = (requests[at::3] for at in range(3))
    for request in beginning:
        fallen.go_on(request, 1)
    for request in settled:
        fallen.go_on(request, SETTLED_AFTER)
    fallen.fall(requests, A)
    fallen.start(requests, B)
    for request in (*waiting, *beginning, *settled[1:]):
        fallen.go_on(request, PAST_AFTER)
    fallen.fall(requests, B)
    assert [request.is_blamed for request in settled] == [True] + [False] * (TOGETHER - 1)


def test_tokens_of_several_sequences_come_together() -> None:
    fallen, request = Fleet(), Suspect(num_sequences=3)
    fallen.start([request], A)
    fallen.go_on(request, 3)
    fallen.fall([request], A)
    fallen.start([request], B)
    fallen.go_on(request, 3 * PAST_AFTER - 1)
    assert request.needs_a_place
    fallen.go_on(request, 1)
    assert not request.needs_a_place


async def test_whoever_waits_is_woken_in_turn() -> None:
    fallen, requests = fleet(TOGETHER + 1, 5)
    fallen.fall(requests, A)
    fallen.start(requests[:TOGETHER], B)
    waiting = [asyncio.create_task(fallen.suspects.wait_for_place(10)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    fallen.go_on(requests[0], PAST_AFTER)
    await waiting[1]
    assert not waiting[2].done()
    fallen.on[requests[1]].close()
    await waiting[2]
    await fallen.suspects.wait_for_place(0.001)


class Host:
    """A replica's process, which dies, with all of its connections, when it gets to the fourth
    token of a poisonous request."""

    def __init__(self, app: ASGIApp, backend: FakeBackend) -> None:
        self.app = app
        self.backend = backend
        self.dead = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.dead.is_set():
            # As good as a port where nobody listens.
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        poisonous = started = False
        num_tokens = 0

        async def receive_here() -> Message:
            nonlocal poisonous, num_tokens
            message = await receive()
            body = message.get("body", b"")
            if b"poison" in body:
                poisonous = True
                # What the log has, the process has survived.
                num_tokens = body.count(b"0:")
            return message

        async def send_here(message: Message) -> None:
            nonlocal num_tokens, started
            started = True
            num_tokens += message.get("body", b"").count(b"0:")
            if poisonous and num_tokens >= 4:
                self.dead.set()
                await asyncio.Event().wait()
            await send(message)

        serving = asyncio.ensure_future(self.app(scope, receive_here, send_here))
        dying = asyncio.ensure_future(self.dead.wait())
        await asyncio.wait({serving, dying}, return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if self.dead.is_set():
            serving.cancel()
            if not started:
                # Otherwise the server would say something.
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
            raise ConnectionAbortedError("the process has died")
        serving.result()


@pytest.mark.parametrize("num_innocent", [2, 15])
async def test_poison_takes_two_hosts_and_a_few_streams(num_innocent: int) -> None:
    words = " ".join(f"w{number}" for number in range(100))
    async with AsyncExitStack() as stack:
        hosts, replicas = [], []
        for number in range(3):
            backend = FakeBackend()
            host = Host(await replica_app(backend, options={"delay_s": 0.002}), backend)
            url = await stack.enter_async_context(serving(host))
            hosts.append(host)
            replicas.append(replica_at(url, name=f"host-{number}"))
        running = await stack.enter_async_context(gateway([]))

        async def ask(prompt: str) -> str:
            messages = [{"role": "user", "content": prompt}]
            body = {**CHAT, "stream": True, "messages": messages}
            return (await running.client.post("/v1/chat/completions", json=body)).text

        running.directory.replace(replicas[:1])
        # All of them have just begun when the first host dies.
        hosts[0].backend.hold(after_tokens=2)
        prompts = [*[words] * num_innocent, f"poison {words}"]
        asking = [asyncio.create_task(ask(prompt)) for prompt in prompts]
        await hosts[0].backend.held.reaches(len(prompts))
        running.directory.replace(replicas)
        hosts[0].backend.release()
        *answers, poisoned = await asyncio.gather(*asking)
    assert sum(host.dead.is_set() for host in hosts) == 2
    assert '"code":"replica_lost"' in poisoned
    lost = [answer for answer in answers if not answer.endswith("data: [DONE]\n\n")]
    assert all('"code":"replica_lost"' in answer for answer in lost)
    assert len(lost) < TOGETHER
