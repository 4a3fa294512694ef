"""A request whose replica is lost: the client gets the answer that it would have had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest

from deployments.fleet.directory import Replica
from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.table import ReplicaTable
from deployments.http import sse
from tests.support.deployments.bodies import STREAM, STREAMED, WORDS, chat, completion
from tests.support.deployments.failover_cases import Cut, Seen, ask, places
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    Running,
    failures,
    gateway,
    replica_app,
    replica_at,
    serving,
)
from tests.support.fuzzing import EVERY_EXAMPLE


@dataclass
class Pair:
    """A gateway in front of a replica that may be cut and one that lives."""

    running: Running
    cut: Cut
    other: Cut
    first: Replica
    second: Replica
    backends: tuple[FakeBackend, FakeBackend]
    num_lost: int = 0

    async def ask(self, body: dict[str, Any], after_bytes: int | None = None) -> Seen:
        """The first replica dies after so many bytes, and comes back under another name."""
        self.num_lost += 1
        first, second = (
            replace(one, replica_id=f"{one.replica_id}-{self.num_lost}")
            for one in (self.first, self.second)
        )
        self.running.directory.replace([first, second])
        self.cut.after_bytes = after_bytes
        return await ask(self.running.client, body)


@asynccontextmanager
async def pair(
    first: dict[str, Any] | None = None, second: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Pair]:
    backends = FakeBackend(), FakeBackend()
    cut = Cut(await replica_app(backends[0], block_size=8, **(first or {})))
    other = Cut(await replica_app(backends[1], block_size=8, **(second or {})))
    async with (
        serving(cut) as url,
        serving(other) as other_url,
        gateway([], **settings) as running,
    ):
        one, two = replica_at(url, name="a"), replica_at(other_url, name="b")
        yield Pair(running, cut, other, one, two, backends)


async def looks_again(table: ReplicaTable) -> None:
    """Until the gateway has looked for a replica, and found none that it goes on at."""
    serving, num_looks = table.serving, 0

    def counted(model: str) -> list[ReplicaState]:
        nonlocal num_looks
        num_looks += 1
        return serving(model)

    with patch.object(table, "serving", counted):
        async with asyncio.timeout(10):
            # A later look says that nothing came of the first.
            while num_looks < 3:
                await asyncio.sleep(0.001)


BODIES = STREAMED | {
    "long prompt": chat("w " * 20, **STREAM, max_tokens=4),
    "length": chat(max_tokens=3, ignore_eos=True, **STREAM),
    "not streamed": chat(n=2, logprobs=True),
    "completion, not streamed": completion(logprobs=1, stop="é"),
    "prompt told, not streamed": completion(echo=True, logprobs=1, prompt_logprobs=2),
    "prompt of a chat told": chat(prompt_logprobs=1, return_token_ids=True),
}


IDENTITY = {"model": "demo", "replica": "gateway-1", "node": "10.0.0.1"}


async def resumes(running: Running, *, after_requests: int) -> float | None:
    """What the metric says once so many requests have been accounted for, which is after the
    client has its answer."""
    registry = running.metrics.registry
    name, labels = "pomona_e2e_request_latency_seconds_count", {**IDENTITY, "stage": "gateway"}

    def num_accounted() -> float:
        return (registry.get_sample_value(name, labels) or 0) + sum(failures(running).values())

    async with asyncio.timeout(10):
        while num_accounted() < after_requests:
            await asyncio.sleep(0.001)
    return registry.get_sample_value("pomona_stream_resumes_total", IDENTITY)


async def test_resumed_streams_are_counted_from_zero_on() -> None:
    async with pair() as replicas:
        assert await resumes(replicas.running, after_requests=0) is None
        await replicas.ask(BODIES["chat"])
        assert await resumes(replicas.running, after_requests=1) == 0
        place = sum(map(len, replicas.cut.writes)) // 2
        for number in (1, 2):
            await replicas.ask(BODIES["chat"], after_bytes=place)
            assert await resumes(replicas.running, after_requests=1 + number) == number
        # What nobody has seen anything of is begun again, not resumed.
        await replicas.ask(BODIES["chat"], after_bytes=0)
        assert await resumes(replicas.running, after_requests=4) == 2


async def test_a_stream_that_can_not_go_on_is_not_counted_as_resumed() -> None:
    async with pair(second={"options": {"can_resume": False}}) as replicas:
        await replicas.ask(BODIES["chat"])
        place = sum(map(len, replicas.cut.writes)) - 50
        with pytest.raises(AssertionError, match="stream_broken"):
            await replicas.ask(BODIES["chat"], after_bytes=place)
        assert await resumes(replicas.running, after_requests=2) == 0


def is_whole(sent: bytes, *, stream: bool) -> bool:
    """Whether nothing but the connection's end is missing: the last event, and its checkpoint."""
    _, has_end, rest = sent.rpartition(sse.DONE if stream else b"data: ")
    _, is_checked, _ = (sse.EVENT_END + rest).partition(sse.EVENT_END + b":~")
    return bool(has_end and is_checked and rest.endswith(sse.EVENT_END))


EVERYWHERE = {"chat", "choices", "stop across tokens", "not streamed"}
"""The other bodies are cut at every fifth place, which is now before an event, now within it."""


@pytest.mark.parametrize("name", BODIES)
async def test_a_connection_lost_anywhere_changes_nothing(name: str) -> None:
    body = BODIES[name]
    step = 1 if EVERY_EXAMPLE or name in EVERYWHERE else 5
    async with pair() as replicas:
        await replicas.ask(body, after_bytes=0)
        undisturbed = await replicas.ask(body)
        writes = replicas.cut.writes
        for place in sorted({*places(writes)})[::step]:
            replicas.other.num_requests = 0
            assert await replicas.ask(body, after_bytes=place) == undisturbed, place
            # How many bytes there are depends on which events had a checkpoint together.
            sent = b"".join(replicas.cut.writes)[:place]
            whole = is_whole(sent, stream="stream" in body)
            assert replicas.other.num_requests == (not whole)
        assert all(backend.live.value == 0 for backend in replicas.backends)


async def test_usage_tells_what_the_replica_that_began_had_cached() -> None:
    body = BODIES["long prompt"]
    async with pair(second={"prefix_caching": False}) as replicas:
        await replicas.ask(body)
        undisturbed = await replicas.ask(body)
        assert undisturbed.others[0]["prompt_tokens_details"] == {"cached_tokens": 16}
        _, first, *_, last, _ = replicas.cut.writes
        size = sum(map(len, replicas.cut.writes))
        for place in (len(first), size // 2, size - len(last)):
            assert await replicas.ask(body, after_bytes=place) == undisturbed
        assert replicas.other.num_requests == 3


async def test_a_replica_that_hangs_in_the_middle_is_left() -> None:
    settings = {"keep_alive_interval_s": 0.1, "stall_timeout_s": 0.2}
    async with pair(**settings) as replicas:
        undisturbed = await replicas.ask(BODIES["choices"])
        size = sum(map(len, replicas.cut.writes))
        replicas.cut.hangs = True
        assert await replicas.ask(BODIES["choices"], after_bytes=size // 2) == undisturbed
        await asyncio.wait_for(replicas.backends[0].live.reaches(0), 60)


@pytest.mark.parametrize("name", ["choices", "not streamed"])
async def test_an_engine_that_hangs_behind_a_living_server_is_left(name: str) -> None:
    async with pair() as replicas:
        undisturbed = await replicas.ask(BODIES[name])
        replicas.backends[0].hold(after_tokens=2)
        asking = asyncio.create_task(replicas.ask(BODIES[name]))
        await replicas.backends[0].held.reaches(1)
        assert not asking.done()
        replicas.backends[0].healthy = False
        assert await asking == undisturbed
        assert replicas.other.num_requests == 1
        await replicas.backends[0].live.reaches(0)


async def test_the_seed_that_the_gateway_chose_stays() -> None:
    async with pair() as replicas:
        await replicas.ask(BODIES["prompts"])
        place = sum(map(len, replicas.cut.writes)) // 2
        await replicas.ask(BODIES["prompts"], after_bytes=place)
        await replicas.ask(BODIES["not streamed"], after_bytes=1)
        await replicas.ask({**BODIES["chat"], "seed": 7}, after_bytes=300)
    first, second = (backend.requests for backend in replicas.backends)
    one_answer = [[r.sampling.seed for r in requests] for requests in (first[3:6], second[:3])]
    assert one_answer[0] == one_answer[1]
    assert len({*one_answer[0]}) == 3
    assert {r.sampling.seed for r in first[:3]}.isdisjoint(one_answer[0])
    assert first[6].sampling.seed == second[3].sampling.seed is not None
    assert first[7].sampling.seed == second[4].sampling.seed == 7
    assert not second[3].was_admitted
    assert all(request.was_admitted for request in second[:3])


async def test_a_prompt_that_has_not_begun_needs_no_place_in_the_queue() -> None:
    body = completion(["one two three", "four five"], **STREAM)
    first = {"max_num_seqs": 1}
    async with pair(first, {**first, "max_queued_requests": 0}) as replicas:
        undisturbed = await replicas.ask(body)
        (seen,) = (i for i, write in enumerate(replicas.cut.writes) if b" two" in write)
        place = sum(map(len, replicas.cut.writes[: seen + 1]))
        assert await replicas.ask(body, after_bytes=place) == undisturbed
        began, waited = replicas.backends[1].requests
        assert any(began.resume)
        assert not any(waited.resume)
        assert waited.was_admitted


async def test_a_backend_that_can_not_resume_ends_the_stream_with_an_error() -> None:
    async with pair(second={"options": {"can_resume": False}}) as replicas:
        await replicas.ask(BODIES["chat"])
        place = sum(map(len, replicas.cut.writes)) - 50
        with pytest.raises(AssertionError, match="stream_broken"):
            await replicas.ask(BODIES["chat"], after_bytes=place)
        assert len(replicas.backends[1].requests) == 1


async def test_a_drained_replica_hands_its_streams_over_and_nobody_is_to_blame() -> None:
    body = BODIES["choices"]
    async with pair() as replicas:
        undisturbed = await replicas.ask(body)
        for number in range(5):
            app = replicas.cut.app
            backend = FakeBackend()
            backend.hold(after_tokens=2)
            replicas.cut.app = leaving = await replica_app(backend)
            asking = asyncio.create_task(replicas.ask(body))
            await backend.held.reaches(1)
            leaving.state.draining = True
            draining = asyncio.create_task(backend.drain())
            await backend.stop()
            assert await asking == undisturbed, number
            await draining
            replicas.cut.app = app


async def test_who_falls_alone_twice_is_refused() -> None:
    body = chat("boom b c d e f", **STREAM)
    faults = {"options": {"faults": {"boom": "abort"}}}
    async with pair(faults, faults) as replicas:
        with pytest.raises(AssertionError, match="replica_lost"):
            await replicas.ask(body)
        # Three in a row may have a common cause; then it was alone.
        assert sum(len(backend.requests) for backend in replicas.backends) == 5


@pytest.mark.parametrize("name", ["not streamed", "completion, not streamed", "no logprobs"])
async def test_an_answer_that_is_not_streamed_survives_two_losses(name: str) -> None:
    words = " ".join(f"w{number}" for number in range(40))
    logprobs = BODIES[name].get("logprobs") if name in BODIES else None
    body = chat(words, n=2, logprobs=logprobs)
    if name.startswith("completion"):
        body = completion(words, logprobs=logprobs)
    async with pair({"prefix_caching": False}, {"prefix_caching": False}) as replicas:
        undisturbed = await replicas.ask(body)
        (usage,) = undisturbed.others
        assert usage["completion_tokens"] == 40 * body.get("n", 1)
        replicas.other.after_bytes = 100
        place = sum(map(len, replicas.cut.writes)) // 2
        assert await replicas.ask(body, after_bytes=place) == undisturbed
        assert (replicas.cut.num_requests, replicas.other.num_requests) == (3, 1)
        last = replicas.backends[0].requests[-1]
        assert any(last.resume) == (logprobs is None)


async def test_an_answer_that_is_not_streamed_waits_for_a_replica_to_come() -> None:
    body = chat(" ".join(f"w{number}" for number in range(40)))
    async with pair({"prefix_caching": False}, {"prefix_caching": False}) as replicas:
        undisturbed = await replicas.ask(body)
        replicas.running.directory.replace([replace(replicas.first, replica_id="alone")])
        replicas.cut.after_bytes = sum(map(len, replicas.cut.writes)) // 2
        asking = asyncio.create_task(ask(replicas.running.client, body))
        while replicas.cut.after_bytes is not None:
            await asyncio.sleep(0.001)
        replicas.running.directory.replace([])
        replicas.running.directory.replace([replicas.second])
        assert await asking == undisturbed
        assert any(replicas.backends[1].requests[0].resume)


async def test_an_answer_that_is_not_streamed_begins_anew_where_it_can_not_go_on() -> None:
    async with pair(second={"options": {"can_resume": False}}) as replicas:
        undisturbed = await replicas.ask(completion(WORDS))
        place = sum(map(len, replicas.cut.writes)) // 2
        assert await replicas.ask(completion(WORDS), after_bytes=place) == undisturbed


async def test_a_long_stream_may_lose_more_than_two_replicas() -> None:
    words = " ".join(f"w{number}" for number in range(120))
    body = chat(words, **STREAM)
    async with pair({"prefix_caching": False}) as replicas:
        undisturbed = await replicas.ask(body)
        size = len(replicas.cut.writes[5])
        many = size * 42
        replicas.other.after_bytes = many
        assert await replicas.ask(body, after_bytes=many) == undisturbed
        assert (replicas.cut.num_requests, replicas.other.num_requests) == (3, 1)


async def test_a_stream_waits_for_a_replica_to_come() -> None:
    async with pair() as replicas:
        undisturbed = await replicas.ask(BODIES["chat"])
        place = sum(map(len, replicas.cut.writes)) // 2
        alone = replace(replicas.first, replica_id="alone")
        replicas.running.directory.replace([alone])
        replicas.cut.after_bytes = place
        asking = asyncio.create_task(ask(replicas.running.client, BODIES["chat"]))
        while replicas.cut.after_bytes is not None:
            await asyncio.sleep(0.001)
        replicas.running.directory.replace([])
        await looks_again(replicas.running.table)
        assert not asking.done()
        replicas.running.directory.replace([replicas.second])
        assert await asking == undisturbed


async def test_a_stream_does_not_wait_for_ever() -> None:
    async with pair(resume_timeout_s=0.2) as replicas:
        await replicas.ask(BODIES["chat"])
        place = sum(map(len, replicas.cut.writes)) // 2
        replicas.running.directory.replace([replace(replicas.first, replica_id="alone")])
        replicas.cut.after_bytes = place
        asking = asyncio.create_task(ask(replicas.running.client, BODIES["chat"]))
        while replicas.cut.after_bytes is not None:
            await asyncio.sleep(0.001)
        replicas.running.directory.replace([])
        with pytest.raises(AssertionError, match="stream_broken"):
            await asking


@pytest.mark.parametrize("change", [{"max_model_len": 8192}, {"revision": "another"}])
async def test_another_model_of_that_name_is_no_place_to_go_on(change: dict[str, Any]) -> None:
    async with pair() as replicas:
        undisturbed = await replicas.ask(BODIES["chat"])
        place = sum(map(len, replicas.cut.writes)) // 2
        replicas.second = replace(replicas.second, **change)
        replicas.cut.num_requests = 0
        assert await replicas.ask(BODIES["chat"], after_bytes=place) == undisturbed
        assert (replicas.cut.num_requests, replicas.other.num_requests) == (2, 0)


async def test_a_stream_waits_for_a_replica_of_its_own_revision() -> None:
    async with pair() as replicas:
        undisturbed = await replicas.ask(BODIES["chat"])
        place = sum(map(len, replicas.cut.writes)) // 2
        replicas.running.directory.replace([replace(replicas.first, replica_id="old")])
        replicas.cut.after_bytes = place
        asking = asyncio.create_task(ask(replicas.running.client, BODIES["chat"]))
        while replicas.cut.after_bytes is not None:
            await asyncio.sleep(0.001)
        new = replace(replicas.second, replica_id="new", revision="another")
        replicas.running.directory.replace([new])
        # A new request goes there; the one that began elsewhere does not.
        await ask(replicas.running.client, BODIES["one token"])
        await looks_again(replicas.running.table)
        assert (asking.done(), replicas.other.num_requests) == (False, 1)
        replicas.running.directory.replace([new, replace(replicas.second, replica_id="same")])
        assert await asking == undisturbed
        assert replicas.other.num_requests == 2


async def test_a_client_can_not_send_an_envelope() -> None:
    async with pair() as replicas:
        replicas.running.directory.replace([replicas.first])
        response = await replicas.running.client.post(
            "/v1/chat/completions",
            json=CHAT | {"stream": True},
            headers={"X-Pomona-Envelope": '{"answer_id":"mine","created":1,"seed":2}'},
        )
    assert "mine" not in response.text
    assert ":~" not in response.text


@pytest.mark.parametrize(
    ("words", "status"), [("fine words", 200), ("boom b c d", 200), ("bug b c d", 500)]
)
async def test_a_silent_answer_is_kept_alive_and_still_has_its_status(
    words: str, status: int
) -> None:
    faults = {"options": {"faults": {"boom": "step_error", "bug": "crash"}}}
    async with pair(faults) as replicas:
        replicas.running.directory.replace([replicas.first, replicas.second])
        replicas.backends[0].hold(after_tokens=1)
        asking = asyncio.create_task(
            replicas.running.client.post("/v1/chat/completions", json=chat(words))
        )
        while not any(sse.KEEP_ALIVE in write for write in replicas.cut.writes):
            await asyncio.sleep(0.001)
        replicas.backends[0].release()
        response = await asking
    assert response.status_code == status
    assert response.text[0] == "{"
    assert response.headers["content-length"] == str(len(response.content))
    assert replicas.other.num_requests == words.startswith("boom")
