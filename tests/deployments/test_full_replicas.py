"""A gateway that knows which replicas are full does not ask them for each of a crowd."""

from __future__ import annotations

import asyncio

import httpx

from deployments.gateway.relay.full_replicas import HOLDS_S, FullReplicas
from tests.support.clock import Clock
from tests.support.deployments.answers import error_of
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    Running,
    failures,
    fake_replica,
    gateway,
    nowhere,
)

PATH = "/v1/chat/completions"


def test_a_replica_is_full_until_a_request_there_ends_or_a_while_is_over() -> None:
    clock = Clock()
    full = FullReplicas(clock)
    with (
        full.request(nowhere("a")),
        full.request(nowhere("b")),
    ):
        assert full.has_room(nowhere("a"))
        assert full.retry_after_s([nowhere("a"), nowhere("b")]) is None
        with full.request(nowhere("a")):
            full.refused(nowhere("a"), 7)
            assert not full.has_room(nowhere("a"))
            assert full.has_room(nowhere("b"))
        assert full.has_room(nowhere("a"))
        full.refused(nowhere("a"), 7)
        full.refused(nowhere("b"), 3)
        assert full.retry_after_s([nowhere("a")]) == 7
        assert full.retry_after_s([nowhere("a"), nowhere("b")]) == 3
        clock.time += HOLDS_S
        assert full.has_room(nowhere("a"))
        assert full.retry_after_s([nowhere("a"), nowhere("b")]) is None


def test_one_that_has_nothing_of_this_gateway_is_asked_again() -> None:
    full = FullReplicas(Clock())
    with full.request(nowhere()):
        pass
    full.refused(nowhere(), 7)
    assert full.has_room(nowhere())


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
