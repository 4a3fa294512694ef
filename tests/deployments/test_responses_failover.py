"""The Responses API through a gateway whose replicas, or which itself, are lost at any moment."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError

from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.work import Placed, Work
from tests.support.deployments import openai_types
from tests.support.deployments.failover_cases import Cut, places
from tests.support.deployments.gateway_harness import (
    Running,
    gateway,
    replica_app,
    replica_at,
    serving,
)
from tests.support.deployments.scripted_backend import ANSWER, Scripted

PATH = "/v1/responses"
TOOLS = [
    {"type": "function", "name": "weather"},
    {"type": "function", "name": "time"},
]
ASKED: dict[str, Any] = {"model": "demo", "input": "How is it?", "tools": TOOLS, "stream": True}
RESUMABLE = {"X-Pomona-Resumable": "1"}


@dataclass
class Pair:
    running: Running
    cut: Cut
    backends: tuple[Scripted, Scripted]

    async def ask(self, after_bytes: int | None = None, **headers: str) -> str:
        """The first replica dies behind so much of its answer."""
        self.cut.after_bytes = after_bytes
        response = await self.running.client.post(PATH, json=ASKED, headers=headers)
        assert response.status_code == 200, response.text
        return response.text


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    """Two replicas with the same words to say, of which the first is always asked first."""
    backends = Scripted(ANSWER), Scripted(ANSWER)
    cut = Cut(await replica_app(backends[0], name="a"))
    async with (
        serving(cut) as url,
        serving(await replica_app(backends[1], name="b")) as other,
        gateway(
            [replica_at(url, name="a"), replica_at(other, name="b")], router=First()
        ) as running,
    ):
        yield Pair(running, cut, backends)


class First:
    """A router."""

    def choose(self, work: Any, able: Any) -> Any:
        return min(able, key=lambda state: state.replica_id)

    def placed(self, work: Work, state: ReplicaState) -> Placed:
        return Placed("unknown")


def told(text: str) -> list[dict[str, Any]]:
    """The events, all of them known, numbered one after another, without what differs between
    equal answers; raises ``AssertionError`` for a stream that did not end."""
    parts = [part for part in text.split("\n\n") if part and not part.startswith(":")]
    assert parts.pop() == "data: [DONE]"
    events = [json.loads(part.split("\n")[1].removeprefix("data: ")) for part in parts]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    response_id = events[0]["response"]["id"]
    names = {response_id: "response"}
    for event in events:
        openai_types.response_event(event)
        item = event.get("item", {})
        for name in (item.get("id"), item.get("call_id")):
            names.setdefault(name, f"name {len(names)}")
    blanked = json.dumps([_untimed(event) for event in events])
    for name, number in names.items():
        if name is not None:
            blanked = blanked.replace(name, number)
    anonymous: list[dict[str, Any]] = json.loads(blanked)
    return anonymous


def _untimed(event: dict[str, Any]) -> dict[str, Any]:
    if "response" not in event:
        return event
    return event | {"response": event["response"] | {"created_at": 0, "completed_at": 0}}


async def test_a_replica_lost_anywhere_changes_nothing() -> None:
    async with pair() as replicas:
        undisturbed = told(await replicas.ask())
        assert undisturbed[-1]["type"] == "response.completed"
        for place in sorted({*places(replicas.cut.writes)})[::7]:
            assert told(await replicas.ask(place)) == undisturbed, place
        assert replicas.backends[1].asked


async def test_a_client_cut_anywhere_gets_exactly_the_rest() -> None:
    async with pair() as replicas:
        text = await replicas.ask(**RESUMABLE)
        events = [part for part in text.split("\n\n") if part and not part.startswith(":")]
        for number in [*range(0, len(events) - 1, 5), len(events) - 2]:
            _, _, last_id = events[number].partition("\nid: ")
            response = await replicas.running.client.post(
                PATH, json=ASKED, headers=RESUMABLE | {"Last-Event-ID": last_id}
            )
            rest = [p for p in response.text.split("\n\n") if p and not p.startswith(":")]
            had = [event.partition("\nid: ")[0] for event in events[: number + 1]]
            got = [event.partition("\nid: ")[0] for event in rest]
            assert told("\n\n".join(had + got)) == told(
                "\n\n".join(event.partition("\nid: ")[0] for event in events)
            )


async def test_what_nobody_goes_on_with_ends_with_an_error_that_has_the_next_number() -> None:
    async with pair() as replicas:
        for backend in replicas.backends:
            backend.stops_after = 40
        response = await replicas.running.client.post(PATH, json=ASKED)
    *before, last = [part for part in response.text.split("\n\n") if part and part[0] != ":"]
    name, data = last.split("\n")
    assert name == "event: error"
    error = json.loads(data.removeprefix("data: "))
    openai_types.response_event(error)
    assert error["sequence_number"] == len(before)
    assert error["type"] == "error"
    assert error["code"]
    assert error["message"]


async def test_refusals_name_the_fields_of_this_api() -> None:
    async with pair() as replicas:
        client: httpx.AsyncClient = replicas.running.client
        for body, param in itertools.chain(
            [({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id")],
            [({"tools": [{"type": "custom", "name": "f", "format": 1}]}, "tools[0].format")],
            [({"previous_response_id": "resp_1"}, "previous_response_id")],
        ):
            response = await client.post(PATH, json=ASKED | body)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == param


async def test_nothing_is_kept_that_could_be_asked_for() -> None:
    async with pair() as replicas:
        client = AsyncOpenAI(base_url=f"{replicas.running.url}/v1", api_key="x", max_retries=0)
        for ask in (
            client.responses.retrieve,
            client.responses.delete,
            client.responses.cancel,
            client.responses.input_items.list,
        ):
            with pytest.raises(NotFoundError, match='"resp_1" not found') as caught:
                await ask("resp_1")
            assert caught.value.code == "response_not_found"
        await client.close()
