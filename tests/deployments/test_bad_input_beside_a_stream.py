"""Requests that are refused while a stream runs: it ends as it would have without them."""

from __future__ import annotations

import asyncio

from deployments.gateway.responses.memory import MemoryStore
from tests.support.deployments.bad_input import BadInput, bad_inputs
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    Running,
    counted_outcomes,
    fake_replica,
    gateway,
)
from tests.support.deployments.replica_server import events_of

PATH = "/v1/chat/completions"
MAX_BODY_BYTES = 1 << 18
MAX_MODEL_LEN = 200
CASES = bad_inputs(model="demo", max_body_bytes=MAX_BODY_BYTES, max_model_len=MAX_MODEL_LEN)
WORDS = [f"word{number}" for number in range(60)]


async def refused(running: Running, case: BadInput) -> None:
    answer = await running.client.post(case.path, content=case.body)
    assert answer.status_code == case.status, (case.name, answer.text)
    assert answer.json()["error"]["param"] == case.param, case.name


async def test_it_ends_whole() -> None:
    assert len(CASES) >= 150
    backend = FakeBackend()
    store = MemoryStore(max_bytes=1 << 20, max_bytes_per_key=1 << 20, max_age_s=3600)
    async with (
        fake_replica(backend, max_model_len=MAX_MODEL_LEN) as one,
        gateway([one], responses=store, max_body_bytes=MAX_BODY_BYTES) as running,
    ):
        message = {"role": "user", "content": " ".join(WORDS)}
        body = {**CHAT, "messages": [message], "stream": True}
        backend.hold(after_tokens=20)
        async with running.client.stream("POST", PATH, json=body) as stream:
            assert stream.status_code == 200
            await backend.held.reaches(1)
            # In the middle of its answer, then while it goes on.
            for case in CASES[::2]:
                await refused(running, case)
            assert backend.live.value == 1
            backend.release()
            rest = [asyncio.create_task(refused(running, case)) for case in CASES[1::2]]
            received = "".join([part async for part in stream.aiter_text()])
            await asyncio.gather(*rest)
        *events, last = [one for one in events_of(received) if not str(one).startswith(":")]
        assert last == "[DONE]"
        text = "".join(one["choices"][0]["delta"].get("content") or "" for one in events)
        assert text == " ".join(WORDS)
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
        await backend.live.reaches(0)
        await running.client.get("/health")
        assert counted_outcomes(running)["demo", "success"] == 1
