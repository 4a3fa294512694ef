"""What the ``openai`` package's own client makes of a gateway's refusals and faults."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai import AsyncOpenAI

from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import CHAT, fake_replica, gateway


async def ask(url: str, *, key: str = "good", words: str = "one two three") -> str | None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        answer = await client.chat.completions.create(
            model=CHAT["model"], messages=[{"role": "user", "content": words}]
        )
        return answer.choices[0].message.content


async def test_a_wrong_key_is_an_authentication_error() -> None:
    async with fake_replica() as one, gateway([one], keys=["good"]) as running:
        with pytest.raises(openai.AuthenticationError) as caught:
            await ask(running.url, key="wrong")
        assert caught.value.code == "invalid_api_key"
        assert await ask(running.url) == "one two three"


async def test_another_machine_is_a_permission_error() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        async with AsyncOpenAI(
            base_url=f"{running.url}/v1",
            api_key="any",
            max_retries=0,
            default_headers={"X-Forwarded-For": "192.0.2.9"},
        ) as client:
            with pytest.raises(openai.PermissionDeniedError) as caught:
                await client.models.list()
        assert caught.value.code == "loopback_only"


async def test_a_full_queue_is_a_rate_limit_error() -> None:
    backend = FakeBackend()
    backend.hold()
    async with (
        fake_replica(backend, max_num_seqs=1, max_queued_requests=0) as one,
        gateway([one], keys=["good"]) as running,
    ):
        first = asyncio.create_task(ask(running.url))
        await backend.held.reaches(1)
        with pytest.raises(openai.RateLimitError) as caught:
            await ask(running.url)
        assert caught.value.code == "queue_full"
        assert caught.value.response.headers["retry-after"] == "2"
        backend.release()
        assert await first == "one two three"


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [("boom b c d", 502, "replica_lost"), ("bug b c d", 500, "internal_error")],
)
async def test_a_fault_is_an_internal_server_error(words: str, status: int, code: str) -> None:
    options = {"faults": {"boom": "step_error", "bug": "crash"}}
    async with (
        fake_replica(options=options) as one,
        gateway([one], keys=["good"]) as running,
    ):
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(running.url, words=words)
        assert (caught.value.status_code, caught.value.code) == (status, code)


async def test_no_replica_is_an_internal_server_error_worth_a_retry() -> None:
    async with gateway([], keys=["good"]) as running:
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(running.url)
        assert (caught.value.status_code, caught.value.code) == (503, "unavailable")
        assert caught.value.response.headers["retry-after"] == "1"
