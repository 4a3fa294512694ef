"""A client that goes away takes its generations with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from deployments.http.disconnect import run_until_disconnect
from tests.support.deployments.replica_server import build, chat, client_of, completion

BODIES: list[dict[str, Any]] = [
    chat("one two three"),
    completion(["one two", "three four", "five six"], n=2),
]


def path_of(body: dict[str, Any]) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("position", [0, 1])
async def test_leaving_a_stream(body: dict[str, Any], position: int) -> None:
    app, backend = await build(keep_alive_interval_s=0.01)
    backend.hold(after_tokens=position)
    num_prompts = len(body["prompt"]) if "prompt" in body else 1
    async with client_of(app) as client:
        request = body | {"stream": True}
        async with client.stream("POST", path_of(body), json=request) as response:
            assert response.status_code == 200
            await backend.held.reaches(num_prompts)
            assert backend.live.value == num_prompts
        await backend.live.reaches(0)
    stats = backend.stats()
    assert stats.kv_cache_blocks_free == stats.kv_cache_blocks_total
    assert stats.request_success == {}


async def test_leaving_cancels_before_the_next_keep_alive() -> None:
    app, backend = await build(keep_alive_interval_s=120)
    backend.hold(after_tokens=1)
    async with client_of(app) as client:
        async with client.stream("POST", "/v1/completions", json=completion(stream=True)):
            await backend.held.reaches(1)
        await asyncio.wait_for(backend.live.reaches(0), 60)


@pytest.mark.parametrize("body", BODIES)
async def test_leaving_before_an_answer_that_is_not_streamed(body: dict[str, Any]) -> None:
    app, backend = await build()
    backend.hold(after_tokens=1)
    async with client_of(app) as client:
        waiting = asyncio.create_task(client.post(path_of(body), json=body))
        await backend.held.reaches(len(body["prompt"]) if "prompt" in body else 1)
        waiting.cancel()
        await backend.live.reaches(0)
        await asyncio.gather(waiting, return_exceptions=True)
        backend.release()
        assert (await client.post(path_of(body), json=body)).status_code == 200


async def test_leaving_while_waiting_for_a_slot() -> None:
    app, backend = await build(max_num_seqs=1, keep_alive_interval_s=0.01)
    backend.hold()
    async with client_of(app) as client:
        first = asyncio.create_task(client.post("/v1/completions", json=completion("a b")))
        await backend.held.reaches(1)
        body = completion("c d", stream=True)
        async with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            assert backend.stats().requests_waiting == 1
        await backend.live.reaches(1)
        assert backend.stats().requests_waiting == 0
        backend.release()
        assert (await first).json()["choices"][0]["text"] == "a b"


async def test_leaving_in_the_middle_of_the_body() -> None:
    app, backend = await build()
    async with client_of(app) as client:
        url = client.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"
        writer.write(f"{head}Authorization: {client.headers['authorization']}\r\n\r\n{{".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert await reader.read() == b""
        assert (await client.post("/v1/completions", json=completion())).status_code == 200
    assert len(backend.requests) == 1


async def test_many_streams_some_of_which_are_left() -> None:
    app, backend = await build(max_num_seqs=8)
    backend.hold(after_tokens=2)

    async def one(client: Any, i: int) -> str:
        body = completion(f"w{i} x{i} y{i} z{i}", stream=True)
        async with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.aiter_lines()
            first = await anext(lines)
            if i % 3 == 0:
                return first
            return first + "".join([line async for line in lines])

    async with client_of(app) as client:
        running = [asyncio.create_task(one(client, i)) for i in range(40)]
        await backend.held.reaches(8)
        backend.release()
        texts = await asyncio.gather(*running)
        await backend.live.reaches(0)
    for i, text in enumerate(texts):
        assert f"w{i}" in text
        assert ("[DONE]" in text) == (i % 3 != 0)
    stats = backend.stats()
    assert stats.kv_cache_blocks_free == stats.kv_cache_blocks_total


def receive_of(*messages: str, forever: bool = False) -> Any:
    queue = [{"type": message} for message in messages]

    async def receive() -> dict[str, str]:
        if not queue and forever:
            await asyncio.Event().wait()
        return queue.pop(0)

    return receive


async def run(work: Coroutine[Any, Any, None], *messages: str, is_sent: bool = False) -> bool:
    receive = receive_of("http.request", *messages, forever=not messages)
    return await run_until_disconnect(receive, work, is_sent=lambda: is_sent)


async def test_work_that_ends_first_is_done() -> None:
    assert await run(asyncio.sleep(0))


@pytest.mark.parametrize("error", [KeyError, TimeoutError])
async def test_work_that_fails_first_raises(error: type[Exception]) -> None:
    async def work() -> None:
        raise error("x")

    with pytest.raises(error, match="x"):
        await run(work())


async def test_work_has_ended_when_a_disconnect_is_told() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    assert not await run(work(), "http.disconnect")
    assert ended == [True]


async def test_the_end_of_a_whole_response_is_no_disconnect() -> None:
    async def work() -> None:
        for _ in range(9):
            await asyncio.sleep(0)

    assert await run(work(), "http.disconnect", is_sent=True)


@pytest.mark.parametrize("turns", range(8))
async def test_work_that_ends_as_the_client_leaves_cancels_nobody_else(turns: int) -> None:
    left = asyncio.Event()

    async def receive() -> dict[str, str]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def work() -> None:
        await asyncio.sleep(0)
        left.set()
        for _ in range(turns):
            await asyncio.sleep(0)

    await run_until_disconnect(receive, work(), is_sent=lambda: False)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    for _ in range(8):
        await asyncio.sleep(0)


async def test_a_server_that_fails_to_watch_ends_the_work() -> None:
    async def receive() -> dict[str, str]:
        raise OSError("of the server")

    with pytest.raises(OSError, match="of the server"):
        await run_until_disconnect(receive, asyncio.Event().wait(), is_sent=lambda: False)


async def test_cancelling_the_caller_cancels_the_work() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    outer = asyncio.create_task(run(work()))
    await started.wait()
    outer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert ended.is_set()
