"""Resumable streams as a client has them: events with ids, of which it asks for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.deployments.failover_cases import PATHS

RESUMABLE = {"X-Pomona-Resumable": "1"}
DONE = "data: [DONE]"


@dataclass(frozen=True)
class Event:
    data: str
    id: str


def events_of(text: str) -> list[Event]:
    """All but comments; raises ``AssertionError`` for what is no event."""
    events = []
    for part in text.removesuffix("\n\n").split("\n\n"):
        if part.startswith(":"):
            continue
        data, _, rest = part.partition("\n")
        assert data.startswith("data: "), part
        event_id = rest.removeprefix("id: ")
        assert "\n" not in rest
        assert bool(event_id) == (data != DONE), part
        events.append(Event(data, event_id))
    return events


def by_choice(events: list[Event]) -> dict[str, list[str]]:
    """The events of each choice in order; choices may take turns in another way."""
    sorted_out: dict[str, list[str]] = {}
    for event in events:
        _, _, rest = event.data.partition('"choices":[')
        sorted_out.setdefault(rest[:12], []).append(event.data)
    return sorted_out


def data_of(events: list[Event]) -> list[str]:
    return [event.data for event in events]


async def post(
    client: httpx.AsyncClient, body: dict[str, Any], last: Event | None = None, **headers: str
) -> httpx.Response:
    path = next(path for name, path in PATHS.items() if name in body)
    headers |= RESUMABLE | ({"Last-Event-ID": last.id} if last else {})
    return await client.post(path, json=body, headers=headers)


async def ask(
    client: httpx.AsyncClient, body: dict[str, Any], last: Event | None = None
) -> list[Event]:
    response = await post(client, body, last)
    assert response.status_code == 200, response.text
    return events_of(response.text)
