"""Replicas that fall under their requests: by common cause nobody fails; a killer is refused."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import httpx
import pytest

from tests.support.clock import Clock
from tests.support.deployments.failover_cases import Seen, seen
from tests.support.deployments.gateway_harness import CHAT, Running, gateway
from tests.support.deployments.mortal_fleet import POISON, MortalFleet, mortal_fleet

PATH = "/v1/chat/completions"
WORDS = " ".join(f"w{number}" for number in range(60))


async def ask(running: Running, words: str, *, stream: bool = True) -> httpx.Response:
    body = {**CHAT, "messages": [{"role": "user", "content": words}], "stream": stream}
    return await running.client.post(PATH, json=body)


def text_of(answer: Seen) -> str:
    (parts,) = answer.choices.values()
    return "".join(part["delta"].get("content") or "" for part in parts if "delta" in part)


def innocent_answers(answers: list[httpx.Response]) -> list[str]:
    return [text_of(seen(answer, stream=True)) for answer in answers]


async def test_a_request_that_kills_every_replica_is_refused_and_its_neighbours_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with gateway([], resume_timeout_s=600) as running, mortal_fleet(running, 3) as fleet:
        replacing = asyncio.create_task(fleet.replace_each())
        for host in fleet.hosts:
            host.backend.hold(after_tokens=2)
        asking = [asyncio.create_task(ask(running, WORDS)) for _ in range(12)]
        killing = asyncio.create_task(ask(running, f"{POISON} {WORDS}"))
        for host in fleet.hosts:
            await host.backend.live.reaches_at_least(4)
        for host in fleet.hosts:
            host.backend.release()
        killer = await killing
        num_fallen = len(fleet.fallen)
        answers = await asyncio.gather(*asking)
        replacing.cancel()
        with suppress(asyncio.CancelledError):
            await replacing
    assert innocent_answers(answers) == [WORDS] * 12
    assert '"code":"replica_lost"' in killer.text
    # Alone twice, and not once more.
    assert [host.num_killed for host in fleet.fallen[-2:]] == [1, 1]
    assert len(fleet.fallen) == num_fallen <= 6
    (told,) = [record for record in caplog.records if "not tried again" in record.message]
    assert told.levelno == logging.WARNING
    assert told.__dict__["request_id"] == killer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("num_falling", "num_clients", "apart_s"),
    [(2, 3, 0.1), (2, 17, 5.0), (3, 3, 5.0), (3, 6, 1.0), (3, 17, 0.1)],
)
async def test_replicas_that_fall_one_after_another_cost_nobody_his_answer(
    num_falling: int, num_clients: int, apart_s: float
) -> None:
    clock = Clock()
    async with (
        gateway([], now=clock, resume_timeout_s=600) as running,
        mortal_fleet(running, 3) as fleet,
    ):
        for host in fleet.hosts:
            host.backend.hold(after_tokens=2)
        asking = [asyncio.create_task(ask(running, WORDS)) for _ in range(num_clients)]
        await requests_are_on(fleet, num_clients)
        for _ in range(num_falling):
            fleet.kill(fleet.hosts[0])
            clock.time += apart_s
            if fleet.hosts:
                await requests_are_on(fleet, num_clients)
        if not fleet.hosts:
            late = asyncio.create_task(ask(running, WORDS))
            asking.append(late)
            await fleet.start_one()
        for host in fleet.hosts:
            host.backend.release()
        answers = await asyncio.gather(*asking)
    assert innocent_answers(answers) == [WORDS] * len(asking)


async def requests_are_on(fleet: MortalFleet, number: int) -> None:
    """All of them have found a replica that lives."""
    async with asyncio.timeout(30):
        while sum(host.num_present for host in fleet.hosts) != number:
            await asyncio.sleep(0.001)
