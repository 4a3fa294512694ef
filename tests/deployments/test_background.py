"""Long pieces of work: whose turn it is, and what becomes of those whose request has gone."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from deployments.protocol.background import (
    REST,
    TENANT_REST,
    Background,
    Job,
    LeftError,
    Turns,
    end_if_left,
)
from deployments.protocol.parsing import MAX_BYTES_ON_THE_LOOP, off_the_loop, parse_request


def add(turns: Turns, tenant: str, count: int = 1) -> list[Job[None]]:
    jobs = [Job(lambda: None) for _ in range(count)]
    for job in jobs:
        turns.add(tenant, job)
    return jobs


def served(turns: Turns, *, job_s: float, until: float) -> list[tuple[str, float]]:
    """Each tenant that has a turn, and when it begins; each job takes ``job_s``."""
    now, found = 0.0, []
    while now < until:
        if chosen := turns.next(now):
            found.append((chosen[0], now))
            turns.ended(chosen[0], now, now + job_s)
            now += job_s
        elif (wait_s := turns.wait_s(now)) is not None:
            assert wait_s > 0
            now += wait_s
        else:
            break
    return found


def test_one_tenant_gets_a_quarter_of_the_thread() -> None:
    turns = Turns()
    add(turns, "one", 3)
    step = 1 + TENANT_REST
    expected = [("one", 0.0), ("one", step), ("one", 2 * step)]
    assert served(turns, job_s=1.0, until=100) == expected


def test_tenants_take_turns_and_get_half_of_the_thread() -> None:
    turns = Turns()
    add(turns, "flood", 100)
    add(turns, "agent")
    add(turns, "other")
    found = served(turns, job_s=1.0, until=100)
    step = 1 + REST
    assert found[:3] == [("flood", 0.0), ("agent", step), ("other", 2 * step)]


def test_a_short_job_waits_for_one_of_a_flood_at_most() -> None:
    turns = Turns()
    add(turns, "flood", 100)
    chosen = turns.next(0.0)
    assert chosen
    add(turns, "agent")
    turns.ended("flood", 0.0, 1.0)
    assert turns.next(1.0) is None
    assert turns.wait_s(1.0) == REST
    chosen = turns.next(1.0 + REST)
    assert chosen
    assert chosen[0] == "agent"


def test_no_job_rests_without_work_before_it() -> None:
    turns = Turns()
    add(turns, "one")
    assert turns.next(5.0)
    turns.ended("one", 5.0, 6.0)
    assert turns.wait_s(6.0) is None
    add(turns, "one")
    assert turns.next(6.0 + TENANT_REST)


def test_a_job_that_leaves_gives_up_its_place() -> None:
    turns = Turns()
    first, second = add(turns, "one", 2)
    turns.leave("one", first)
    turns.leave("one", first)
    chosen = turns.next(0.0)
    assert chosen
    assert chosen[1] is second
    assert turns.wait_s(0.0) is None


async def test_results_and_errors_reach_the_caller() -> None:
    background = Background("test")
    assert await background.run(lambda: 3) == 3

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await background.run(fail, tenant="other")
    assert await background.run(lambda: 4, tenant="third") == 4


async def test_a_cancelled_job_never_begins() -> None:
    background = Background("test")
    begun, release, done = threading.Event(), threading.Event(), list[str]()

    def hold() -> None:
        begun.set()
        release.wait()

    first = asyncio.ensure_future(background.run(hold))
    leaving = asyncio.ensure_future(background.run(lambda: done.append("gone"), tenant="leaving"))
    staying = asyncio.ensure_future(background.run(lambda: done.append("there"), tenant="staying"))
    await asyncio.to_thread(begun.wait)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    release.set()
    await asyncio.gather(first, staying)
    assert done == ["there"]


@pytest.mark.parametrize("part", ["decoding", "checking"])
async def test_a_body_whose_client_leaves_is_parsed_no_further(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first object that is decoded, or checked, after it has left."""
    begun, left, ended = threading.Event(), threading.Event(), threading.Event()
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == (3 if part == "decoding" else 303):
            begun.set()
            left.wait()
        end_if_left()

    monkeypatch.setattr("deployments.protocol.json_body.end_if_left", step)
    monkeypatch.setattr("deployments.protocol.strict.end_if_left", step)
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "x" * 1000} for _ in range(300)]}
    ).encode()
    assert len(body) > MAX_BYTES_ON_THE_LOOP
    errors = []

    def parse() -> None:
        try:
            parse_request("/v1/chat/completions", body)
        except BaseException as error:
            errors.append(error)
            raise
        finally:
            ended.set()

    asking = asyncio.ensure_future(off_the_loop(len(body), parse, tenant="leaves"))
    await asyncio.to_thread(begun.wait)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    left.set()
    await asyncio.to_thread(ended.wait)
    assert [type(one) for one in errors] == [LeftError]
    assert steps in (3, 303)
