"""A gateway that knows which replicas are full does not ask them for each of a crowd."""

from __future__ import annotations

import asyncio

import httpx
from fake_backend import FakeBackend
from gateway_harness import CHAT, Running, failures, fake_replica, gateway
from test_gateway_relay import error_of
from test_retries import Clock, one

from deployments.gateway.relay.full_replicas import HOLDS_S, FullReplicas

PATH = "/v1/chat/completions"


def test_a_replica_is_full_until_a_request_there_ends_or_a_while_is_over() -> None:
    clock = Clock()
    full = FullReplicas(clock)
    with full.request(one("a")), full.request(one("b")):
        assert full.has_room(one("a"))
        assert full.retry_after_s([one("a"), one("b")]) is None
        with full.request(one("a")):
            full.refused(one("a"), 7)
            assert not full.has_room(one("a"))
            assert full.has_room(one("b"))
        assert full.has_room(one("a"))
        full.refused(one("a"), 7)
        full.refused(one("b"), 3)
        assert full.retry_after_s([one("a")]) == 7
        assert full.retry_after_s([one("a"), one("b")]) == 3
        clock.time += HOLDS_S
        assert full.has_room(one("a"))
        assert full.retry_after_s([one("a"), one("b")]) is None


def test_one_that_has_nothing_of_this_gateway_is_asked_again() -> None:
    full = FullReplicas(Clock())
    with full.request(one()):
        pass
    full.refused(one(), 7)
    assert full.has_room(one())


async def ask(running: Running) -> httpx.Response:
    return await running.client.post(PATH, json=CHAT)


async def test_a_crowd_at_a_full_replica_is_refused_by_the_gateway() -> None:
    backend = FakeBackend()
    backend.hold()
    async with (
        fake_replica(backend, max_num_seqs=1, max_queued_requests=0) as replica,
        gateway([replica], full=FullReplicas(Clock())) as running,
    ):
        first = asyncio.create_task(ask(running))
        await backend.held.reaches(1)
        refused = [await ask(running) for _ in range(5)]
        assert [response.status_code for response in refused] == [429] * 5
        assert {response.headers["retry-after"] for response in refused} == {"2"}
        assert {str(error_of(response)["code"]) for response in refused} == {"queue_full"}
        assert len(backend.requests) == 2
        backend.release()
        assert (await first).status_code == 200
        assert (await ask(running)).status_code == 200
        # The replica has counted the one that it was asked for.
        assert failures(running) == {("demo", "rate_limit_error"): 4}
