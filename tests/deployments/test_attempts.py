"""What a replica says of attempts that their gateway has left."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from deployments.backend import Delta, Prefill
from deployments.http.errors import ApiError
from deployments.replica import attempts as module
from deployments.replica.attempts import Attempts, Tally
from deployments.wire.last_word import ATTEMPTS_PATH, LastWord
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import SECRET, fake_replica


def delta(index: int, *token_ids: int, ends: bool = False) -> Delta:
    return Delta(index, "", token_ids, 5, 0, finish_reason="stop" if ends else None)


def test_a_tally_counts_what_was_made_and_the_step_that_was_under_way() -> None:
    tally = Tally(choices_per_prompt=2)
    assert tally.last_word == LastWord(0, 0)
    tally.made(0, Prefill(0, 5))
    assert tally.last_word == LastWord(5, 2)
    tally.made(0, delta(0, 1, 2))
    tally.made(0, delta(1, 3, ends=True))
    assert tally.last_word == LastWord(5, 3 + 1)
    tally.made(1, delta(0, 4, ends=True))
    tally.made(1, delta(1, 5, ends=True))
    tally.made(0, delta(0, 6, ends=True))
    assert tally.last_word == LastWord(10, 6)


async def test_the_last_word_is_said_once_the_attempt_has_ended() -> None:
    attempts, tally = Attempts(), Tally(1)
    with attempts.running("a", tally):
        asking = asyncio.create_task(attempts.last_word("a"))
        await asyncio.sleep(0)
        assert not asking.done()
        tally.made(0, delta(0, 1, 2, ends=True))
    assert await asking == LastWord(5, 2)
    # Whoever asks again hears the same.
    assert await attempts.last_word("a") == LastWord(5, 2)


async def test_an_attempt_that_was_given_up_before_it_came_does_not_run() -> None:
    attempts = Attempts()
    assert await attempts.last_word("a") == LastWord(0, 0)
    with pytest.raises(ApiError, match="given"), attempts.running("a", Tally(1)):
        raise AssertionError("it runs")


async def test_only_the_latest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 2)
    attempts = Attempts()
    for name in ("a", "b", "c"):
        tally = Tally(1)
        with attempts.running(name, tally):
            tally.made(0, delta(0, 1, ends=True))
    assert await attempts.last_word("b") == LastWord(5, 1)
    assert await attempts.last_word("a") == LastWord(0, 0)


async def test_only_gateways_may_ask() -> None:
    async with (
        fake_replica(FakeBackend()) as replica,
        httpx.AsyncClient(base_url=replica.url) as client,
    ):
        path = f"{ATTEMPTS_PATH}/a"
        assert (await client.delete(path)).status_code == 401
        headers = {"Authorization": f"Bearer {SECRET}"}
        said = await client.delete(path, headers=headers)
        assert LastWord.parse(said.content) == LastWord(0, 0)
