"""Streams whose clients are cut from their gateway, anywhere, and come back to another one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from deployments.fleet.directory import Replica
from deployments.gateway.access.api_keys import ApiKey, KeyRing
from tests.support.deployments.bodies import STREAM, STREAMED, chat, completion
from tests.support.deployments.failover_cases import PATHS, Cut
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    Running,
    gateway,
    replica_app,
    replica_at,
    serving,
)
from tests.support.deployments.resumable_streams import (
    DONE,
    RESUMABLE,
    Event,
    ask,
    by_choice,
    data_of,
    events_of,
    post,
)
from tests.support.documents import block

BODIES = STREAMED | {
    "length": chat(max_tokens=3, ignore_eos=True, seed=4, **STREAM),
    "cached prompt": completion("w " * 20, **STREAM),
}


@dataclass
class Fleet:
    """Two gateways in front of two replicas."""

    gateways: tuple[Running, Running]
    replicas: tuple[Replica, Replica]
    cuts: tuple[Cut, Cut]
    backends: tuple[FakeBackend, FakeBackend]

    def serve(self, *replicas: Replica) -> None:
        for running in self.gateways:
            running.directory.replace(replicas)


@asynccontextmanager
async def fleet(
    first: dict[str, Any] | None = None, second: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Fleet]:
    backends = FakeBackend(), FakeBackend()
    cuts = (
        Cut(await replica_app(backends[0], name="a", block_size=8, **(first or {}))),
        Cut(await replica_app(backends[1], name="b", block_size=8, **(second or {}))),
    )
    async with (
        serving(cuts[0]) as url,
        serving(cuts[1]) as other_url,
        gateway([], **settings) as one,
        gateway([], **settings) as two,
    ):
        replicas = replica_at(url, name="a"), replica_at(other_url, name="b")
        yield Fleet((one, two), replicas, cuts, backends)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "made again"])
async def test_a_client_cut_anywhere_gets_exactly_the_rest(
    body: dict[str, Any], kept: bool
) -> None:
    """From the replica that had the stream, or if that is lost, too, from another one, which has
    other prefixes cached."""
    async with fleet(second={"prefix_caching": False}) as running:
        one, two = running.gateways
        running.serve(running.replicas[0])
        await ask(one.client, body)
        undisturbed = await ask(one.client, body)
        running.serve(running.replicas[0 if kept else 1])
        assert undisturbed[-1].data == DONE
        for place, last in enumerate(undisturbed[:-1], start=1):
            rest = await ask(two.client, body, last)
            assert by_choice(undisturbed[:place] + rest) == by_choice(undisturbed), place
            assert rest[-1].data == DONE
        assert any(running.cuts[1].writes) != kept
        resumed = [any(one.resume) for one in running.backends[0].requests]
        assert any(resumed) == (kept and len(undisturbed) > 4)
        assert all(backend.live.value == 0 for backend in running.backends)


@pytest.mark.parametrize("name", ["chat", "choices", "prompts"])
async def test_a_rest_may_be_cut_again_and_again(name: str) -> None:
    body = BODIES[name]
    async with fleet() as running:
        one, two = running.gateways
        running.serve(*running.replicas)
        undisturbed = await ask(one.client, body)
        had = undisturbed[:1]
        while had[-1].data != DONE:
            client = (one, two)[len(had) % 2].client
            running.serve(running.replicas[len(had) // 2 % 2])
            had += (await ask(client, body, had[-1]))[:1]
        assert by_choice(had) == by_choice(undisturbed)


@pytest.mark.parametrize("name", ["choices", "stop across tokens", "prompts"])
async def test_a_replica_lost_while_the_rest_is_made_changes_nothing(name: str) -> None:
    body = BODIES[name]
    async with fleet() as running:
        one, two = running.gateways
        running.serve(running.replicas[0])
        undisturbed = await ask(one.client, body)
        place = len(undisturbed) * 2 // 3
        last = undisturbed[place - 1]
        running.serve(running.replicas[1])
        await ask(two.client, body, last)
        size = sum(map(len, running.cuts[1].writes))
        for number, after_bytes in enumerate(range(0, size, size // 25)):
            # Nobody has anything kept, or anything against the other.
            began, other = (
                replace(replica, replica_id=f"{replica.replica_id}-{number}")
                for replica in running.replicas
            )
            running.serve(began, other)
            running.cuts[0].after_bytes = None
            running.cuts[1].after_bytes = after_bytes
            rest = await ask(two.client, body, last)
            assert by_choice(undisturbed[:place] + rest) == by_choice(undisturbed), after_bytes


async def test_the_replica_that_had_the_stream_is_asked_first() -> None:
    async with fleet() as running:
        one, two = running.gateways
        running.serve(*running.replicas)
        undisturbed = await ask(one.client, BODIES["chat"])
        had_it = 0 if running.cuts[0].num_requests else 1
        for place in (3, 4, 5):
            await ask(two.client, BODIES["chat"], undisturbed[place])
        assert running.cuts[had_it].num_requests == 4
        registry = two.metrics.registry
        labels = {"model": "demo", "replica": "gateway-1", "node": "10.0.0.1"}
        assert registry.get_sample_value("pomona_stream_reconnects_total", labels) == 3
        labels_of_one = one.metrics.registry.get_sample_value(
            "pomona_stream_reconnects_total", labels
        )
        assert labels_of_one == 0


async def test_another_model_does_not_go_on_with_a_stream() -> None:
    async with fleet(resume_timeout_s=0.05) as running:
        one, two = running.gateways
        running.serve(running.replicas[0])
        undisturbed = await ask(one.client, BODIES["chat"])
        running.serve(replace(running.replicas[1], revision="another"))
        response = await post(two.client, BODIES["chat"], undisturbed[2])
        assert response.status_code == 503
        assert running.cuts[1].num_requests == 0


async def test_a_client_comes_back_while_its_stream_still_runs() -> None:
    """As after a cut that only the client has noticed."""
    async with fleet() as running:
        one, two = running.gateways
        running.serve(running.replicas[0])
        backend, body = running.backends[0], BODIES["chat"]
        backend.hold(after_tokens=4)
        path = PATHS["messages"]
        async with one.client.stream("POST", path, json=body, headers=RESUMABLE) as response:
            blocks = aiter(response.aiter_text())
            text = ""
            while text.count("\nid: ") < 5:
                text += await anext(blocks)
            had = events_of(text)
            again = asyncio.create_task(ask(two.client, body, had[-1]))
            await backend.held.reaches(2)
            backend.release()
            rest = data_of(await again)
            async for block in blocks:
                text += block
            assert data_of(had) + rest == data_of(events_of(text))
        assert any(backend.requests[1].resume)


async def test_a_stream_without_the_header_has_no_ids() -> None:
    async with fleet() as running:
        running.serve(running.replicas[0])
        response = await running.gateways[0].client.post(PATHS["messages"], json=BODIES["chat"])
        assert response.status_code == 200
        assert "\nid:" not in response.text
        assert running.backends[0].requests


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"X-Pomona-Resumable": "yes"}, {"stream": True}),
        ({"X-Pomona-Resumable": ""}, {"stream": True}),
        ({"X-Pomona-Resumable": "1"}, {"stream": False}),
        ({"X-Pomona-Resumable": "true"}, {}),
        ({"Last-Event-ID": "x"}, {"stream": True}),
    ],
)
async def test_a_header_that_can_not_be_obeyed_is_named(
    headers: dict[str, str], fields: dict[str, Any]
) -> None:
    async with fleet() as running:
        running.serve(running.replicas[0])
        client = running.gateways[0].client
        response = await client.post(PATHS["messages"], json=chat(**fields), headers=headers)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "X-Pomona-Resumable"
        assert running.cuts[0].num_requests == 0


async def test_forged_altered_foreign_and_expired_ids_are_refused() -> None:
    keys = KeyRing([ApiKey.of("search", "key-of-search"), ApiKey.of("chat", "key-of-chat")])
    search, other = ({"Authorization": f"Bearer key-of-{name}"} for name in ("search", "chat"))
    body = chat(**STREAM)
    async with (
        fleet(keys=keys) as running,
        gateway([running.replicas[0]], keys=keys, resumption_key=b"another") as elsewhere,
    ):
        one, two = running.gateways
        running.serve(running.replicas[0])
        events = events_of((await post(one.client, body, **search)).text)
        last = events[3]
        num_requests = running.cuts[0].num_requests
        altered = last.id[:9] + ("A" if last.id[9] != "A" else "B") + last.id[10:]

        async def refused(
            client: httpx.AsyncClient,
            event_id: str = last.id,
            asked: dict[str, Any] = body,
            headers: dict[str, str] = search,
        ) -> str:
            response = await post(client, asked, Event("", event_id), **headers)
            assert response.status_code == 400, response.text
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("resumption_refused", "Last-Event-ID")
            message: str = error["message"]
            return message

        assert "was changed" in await refused(two.client, "e30.AAAA")
        assert "was changed" in await refused(two.client, altered)
        assert "was not given" in await refused(elsewhere.client)
        assert "another request" in await refused(two.client, asked=chat("others", **STREAM))
        assert "another request" in await refused(two.client, headers=other)
        now = time.time
        with patch("deployments.gateway.resumption.time.time", lambda: now() + 7200):
            assert "too old" in await refused(two.client)
        assert running.cuts[0].num_requests == num_requests
        rest = events_of((await post(two.client, body, last, **search)).text)
        assert data_of(events[:4] + rest) == data_of(events)


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
async def test_the_client_of_the_document_loses_nothing(part: float) -> None:
    names: dict[str, Any] = {}
    exec(block("resume"), names)
    body, path = BODIES["choices"], PATHS["messages"]
    async with fleet() as running:
        one, two = running.gateways
        running.serve(running.replicas[0])
        cut = Cut(one.app)
        async with serving(cut) as url:

            async def read() -> list[str]:
                gateways = [url, two.url]
                return await asyncio.to_thread(
                    lambda: [*names["stream"](gateways, path, body | {"seed": 3}, {})]
                )

            undisturbed = await read()
            assert cut.num_requests == 1
            cut.after_bytes = int(part * sum(map(len, cut.writes)))
            resumed = await read()
        assert running.cuts[0].num_requests == 3
    assert len({json.loads(data)["id"] for data in resumed}) == 1
    assert of_choices(resumed) == of_choices(undisturbed)


def of_choices(data: list[str]) -> dict[str, list[str]]:
    """Without what is new in each answer."""
    events = [Event(one[one.index('"choices"') :], "") for one in data]
    return by_choice(events)
