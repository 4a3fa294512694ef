"""A gateway that knows which replicas are full does not ask them for each of a crowd."""

from __future__ import annotations

import asyncio

import httpx

from deployments.gateway.replicas.state import FULL_S
from deployments.gateway.replicas.suspect import Suspect
from deployments.gateway.replicas.table import full_retry_after_s
from deployments.gateway.replicas.work import Work
from tests.support.clock import Clock
from tests.support.deployments.answers import error_of
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    Running,
    failures,
    fake_replica,
    gateway,
)
from tests.support.deployments.routing_cases import table_of

PATH = "/v1/chat/completions"
WORK = Work("demo", 1)


def test_a_replica_is_full_until_a_request_there_ends_or_a_while_is_over() -> None:
    clock = Clock()
    table, (one, other) = table_of("a", "b", clock=clock)
    with (
        table.attempt(WORK, Suspect(), one),
        table.attempt(WORK, Suspect(), other),
    ):
        assert one.has_room
        assert full_retry_after_s([one, other]) is None
        with table.attempt(WORK, Suspect(), one):
            one.refused(7)
            assert not one.has_room
            assert other.has_room
        assert one.has_room
        one.refused(7)
        other.refused(3)
        assert full_retry_after_s([one]) == 7
        assert full_retry_after_s([one, other]) == 3
        clock.time += FULL_S
        assert one.has_room
        assert full_retry_after_s([one, other]) is None


def test_one_that_has_nothing_of_this_gateway_is_asked_again() -> None:
    table, (one,) = table_of("a")
    with table.attempt(WORK, Suspect(), one):
        pass
    one.refused(7)
    assert one.has_room


async def ask(running: Running) -> httpx.Response:
    return await running.client.post(PATH, json=CHAT)


async def test_a_crowd_at_a_full_replica_is_refused_by_the_gateway() -> None:
    backend = FakeBackend()
    backend.hold()
    async with (
        fake_replica(backend, max_num_seqs=1, max_queued_requests=0) as replica,
        gateway([replica], now=Clock()) as running,
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


async def test_who_has_taken_its_part_of_a_queue_is_refused_alone() -> None:
    backend = FakeBackend()
    backend.hold()
    faults = {"faults": {"greedy": "full_for_tenant"}}
    greedy = {**CHAT, "messages": [{"role": "user", "content": "greedy"}]}
    async with (
        fake_replica(backend, options=faults) as one,
        fake_replica(name="replica-2") as other,
        gateway([one], now=Clock()) as running,
    ):
        first = asyncio.create_task(ask(running))
        await backend.held.reaches(1)
        for number in range(2):
            refused = await running.client.post(PATH, json=greedy)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
            assert error_of(refused)["code"] == "queue_full"
            # To the gateway the replica is not full: it is asked again, and for others.
            assert len(backend.requests) == 2 + number
        running.directory.replace([one, other])
        assert (await running.client.post(PATH, json=greedy)).status_code == 200
        backend.release()
        assert (await first).status_code == 200
