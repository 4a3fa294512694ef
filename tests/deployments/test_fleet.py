"""``GET /v1/fleet``: what a gateway says of its engines, and how soon it says that one is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import httpx
import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.backend import Delta, Prefill
from deployments.fleet.directory import Replica, ReplicaDirectory
from deployments.gateway.access.api_keys import ApiKey, KeyRing, key_digest
from deployments.gateway.openapi import openapi_document
from deployments.gateway.relay.connections import ReplicaConnections
from deployments.gateway.replicas.feed import MOST_EVENTS, Feed
from deployments.gateway.replicas.table import ReplicaTable
from deployments.gateway.watch import watch as module
from deployments.gateway.watch.rates import HISTORY_EVERY_S, MOST_HISTORY, Rates, Sample
from deployments.gateway.watch.routes import MOST_EVENTS as EVENTS_OF_A_STREAM
from deployments.gateway.watch.watch import ANSWERS_WITHIN_S, LIVE_EVERY_S, FleetWatch
from deployments.gateway.watch.watched import SHOWN_S
from deployments.http.server import HttpServer
from deployments.observe.host.reading import MEMORY_TOTAL, TEMPERATURE, Reading
from deployments.replica.attempts import Attempts, Tally
from deployments.replica.reading import HostReader
from deployments.wire.reading import READING_PATH, EngineReading
from tests.support.clock import Clock
from tests.support.deployments.answers import error_of
from tests.support.deployments.bodies import STREAM
from tests.support.deployments.failover_cases import Cut
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    CHAT,
    SECRET,
    ScriptedReplica,
    fake_replica,
    gateway,
    replica_app,
    replica_at,
    scripted,
    serving,
)

FLEET = "/v1/fleet"
CHAT_PATH = "/v1/chat/completions"


def engines_of(view: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for host in view["hosts"] for one in host["engines"]}


@asynccontextmanager
async def watch_of(
    *replicas: Replica, now: Clock | None = None
) -> AsyncIterator[tuple[FleetWatch, ReplicaDirectory]]:
    """A watch that reads when it is told to."""
    directory = ReplicaDirectory(replicas)
    connections = ReplicaConnections()

    async def gateways() -> list[Any]:
        return []

    yield (
        FleetWatch(
            ReplicaTable(directory, load_half_life_s=10.0),
            connections,
            gateways,
            gateway="gateway-1",
            version="1",
            now=now or Clock(),
        ),
        directory,
    )
    connections.close()


async def read(watch: FleetWatch) -> dict[str, Any]:
    await watch.read()
    _, told = await watch.after(0)
    view: dict[str, Any] = json.loads(told)
    return view


def kinds(view: dict[str, Any]) -> list[str]:
    """Of events, the oldest first."""
    return [one["kind"] for one in reversed(view["events"])]


async def test_hosts_and_engines_as_the_document_says() -> None:
    backend = FakeBackend()
    async with (
        fake_replica(backend, name="one", max_num_seqs=4) as one,
        fake_replica(name="two") as two,
        gateway([one, replace(two, node="10.0.0.3")], watches=True) as running,
    ):
        await running.client.post(CHAT_PATH, json=CHAT)
        response = await running.client.get(FLEET)
        assert response.headers["cache-control"] == "no-store"
        view = response.json()
    document = openapi_document()
    schema = document["paths"][FLEET]["get"]["responses"]["200"]["content"]["application/json"]
    jsonschema.validate(view, {**schema["schema"], "components": document["components"]})
    assert [host["node"] for host in view["hosts"]] == ["10.0.0.2", "10.0.0.3"]
    engine = engines_of(view)["one"]
    assert engine["model"] == "demo"
    assert engine["state"] == "ready"
    assert engine["kv_cache"]["total"] == 1024
    assert SECRET not in response.text
    assert view["gateways"] == [{"id": "gateway-1", "node": "10.0.0.1"}]


async def test_lanes_show_each_sequence_and_nothing_of_its_text() -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([one], watches=True) as running:
        backend.hold(after_tokens=2)
        body = {**CHAT, "messages": [{"role": "user", "content": "whisper it softly now"}]}
        asking = asyncio.create_task(running.client.post(CHAT_PATH, json=body))
        await backend.held.reaches(1)
        view = (await running.client.get(FLEET)).json()
        # What was read before the request came is at most a second old.
        while not (lanes := engines_of(view)["replica-1"]["lanes"]):
            view = (await running.client.get(FLEET)).json()
        backend.release()
        await asking
    [lane] = lanes
    assert lane.keys() == {"id", "prompt_tokens", "computed_tokens", "generated_tokens"}
    assert "whisper" not in json.dumps(view)


async def test_a_key_sees_its_own_sequences_and_hits_and_an_operator_everybodys() -> None:
    keys = KeyRing(
        [
            ApiKey.of("alice", "alices"),
            ApiKey.of("bob", "bobs"),
            ApiKey("operator", (key_digest("operators"),), is_operator=True),
        ]
    )
    content = " ".join(f"word{number}" for number in range(200))
    body = {"model": "demo", "messages": [{"role": "user", "content": content}]}
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([one], watches=True, keys=keys) as running:
        client = running.client

        async def ask(key: str) -> tuple[int, int]:
            headers = {"Authorization": f"Bearer {key}"}
            answer = (await client.post(CHAT_PATH, json=body, headers=headers)).json()
            usage = answer["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

        async def seen_by(key: str) -> tuple[list[str], int, int]:
            headers = {"Authorization": f"Bearer {key}"}
            engine = engines_of((await client.get(FLEET, headers=headers)).json())["replica-1"]
            assert "tenant" not in json.dumps(engine)
            hits, asked = engine["prefix_cache_hit_tokens"], engine["prefix_cache_query_tokens"]
            return sorted(lane["id"] for lane in engine["lanes"]), hits, asked

        had = await ask("alices")
        backend.hold(after_tokens=2)
        asking = [asyncio.create_task(ask(key)) for key in ("alices", "bobs", "bobs")]
        await backend.held.reaches(3)
        while len((everybodys := await seen_by("operators"))[0]) < 3:
            await asyncio.sleep(0)
        alices, bobs = await seen_by("alices"), await seen_by("bobs")
        backend.release()
        told = await asyncio.gather(*asking)
        while (await seen_by("operators"))[0]:
            await asyncio.sleep(0)
        ends = [await seen_by(key) for key in ("alices", "bobs", "operators")]
    assert (len(alices[0]), len(bobs[0])) == (1, 2)
    assert sorted(alices[0] + bobs[0]) == everybodys[0]
    alices_counts, *bobs_counts = told
    assert ends[0][1:] == tuple(map(sum, zip(had, alices_counts, strict=True)))
    assert ends[1][1:] == tuple(map(sum, zip(*bobs_counts, strict=True)))
    assert ends[1][1] > 0
    assert ends[2][1:] == tuple(map(sum, zip(ends[0][1:], ends[1][1:], strict=True)))


async def test_without_keys_everybody_sees_every_sequence() -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([one], watches=True) as running:
        backend.hold(after_tokens=2)
        asking = [asyncio.create_task(running.client.post(CHAT_PATH, json=CHAT)) for _ in range(2)]
        await backend.held.reaches(2)
        while len(engines_of((await running.client.get(FLEET)).json())["replica-1"]["lanes"]) < 2:
            await asyncio.sleep(0)
        backend.release()
        await asyncio.gather(*asking)


def test_lanes_follow_prefill_decode_and_end() -> None:
    attempts, tally = Attempts(), Tally(2)

    def lanes() -> list[tuple[int, int, int]]:
        told = attempts.lanes(8)
        return [(one.prompt_tokens, one.computed_tokens, one.generated_tokens) for one in told]

    def made(index: int, *token_ids: int, ends: bool = False) -> None:
        finish_reason = "stop" if ends else None
        tally.made(0, Delta(index, "", token_ids, 9, 4, finish_reason=finish_reason))  # type: ignore[arg-type]

    with attempts.running("a", tally):
        assert lanes() == []
        tally.made(0, Prefill(4, 9))
        assert lanes() == [(9, 4, 0)]
        made(0, 1, 2)
        made(1, 3)
        assert lanes() == [(9, 9, 2), (9, 9, 1)]
        made(0, 4, ends=True)
        assert lanes() == [(9, 9, 1)]
        made(1, 5, ends=True)
        assert lanes() == []
        assert attempts.lanes(0) == ()
    assert lanes() == []


async def test_a_stream_goes_on_every_second_and_ends_when_the_gateway_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LIVE_EVERY_S", 0.01)
    async with fake_replica() as one, gateway([one], watches=True) as running:
        headers = {"Accept": "text/event-stream"}
        async with running.client.stream("GET", FLEET, headers=headers) as response:
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            lines = [line async for line in response.aiter_lines() if line]
        assert len(lines) == EVENTS_OF_A_STREAM
        times = [json.loads(line.removeprefix("data: "))["time"] for line in lines]
        assert times == sorted(set(times))
        looking = running.client.stream("GET", FLEET, headers=headers)
        response = await looking.__aenter__()
        lines_left = response.aiter_lines()
        assert (await anext(lines_left)).startswith("data: ")
    # The gateway has ended, and did not wait for who looked.
    with suppress(httpx.TransportError):
        assert len([line async for line in lines_left if line]) < EVENTS_OF_A_STREAM


async def test_a_reading_that_fails_is_logged_and_the_next_one_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LIVE_EVERY_S", 0.001)
    async with watch_of() as (watch, _):
        monkeypatch.setattr(watch, "read", Mock(side_effect=[KeyError("a fault"), watch.read()]))
        watching = asyncio.create_task(watch.run_for_ever())
        async with asyncio.timeout(10):
            assert (await watch.latest())[0] == 1
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
    assert "KeyError: 'a fault'" in caplog.text


async def test_who_may_look() -> None:
    async with fake_replica() as one:
        async with gateway([one], keys=["key"], watches=True) as running:
            refused = await running.client.get(FLEET)
            assert refused.status_code == 401
            assert "API key" in error_of(refused)["message"]
            told = await running.client.get(FLEET, headers={"Authorization": "Bearer key"})
            assert told.status_code == 200
        async with gateway([one], page=False) as running:
            for path in (FLEET, "/page/app.js"):
                assert (await running.client.get(path)).status_code == 404
            assert (await running.client.get("/")).status_code == 405
            assert (await running.client.head("/")).status_code == 200


def test_a_loss_is_seen_within_two_seconds() -> None:
    """Whoever looks gets a view as soon as it is made, and one is made so often."""
    assert LIVE_EVERY_S + ANSWERS_WITHIN_S < 2.0


async def test_an_engine_that_is_killed_is_lost_at_the_next_reading() -> None:
    clock = Clock()
    server = HttpServer(await replica_app(FakeBackend()), host="127.0.0.1", port=0)
    async with fake_replica(name="other") as other:
        one = replica_at(await server.start())
        async with watch_of(one, other, now=clock) as (watch, directory):
            assert engines_of(await read(watch))["replica-1"]["state"] == "ready"
            await server.stop(timeout_s=0)
            view = await read(watch)
            assert engines_of(view)["replica-1"]["state"] == "lost"
            assert engines_of(view)["other"]["state"] == "ready"
            assert kinds(view) == ["lost"]
            # Serve replaces it.
            directory.replace([other, replace(other, replica_id="new")])
            view = await read(watch)
            assert kinds(view) == ["lost", "joined"]
            assert engines_of(view).keys() == {"replica-1", "other", "new"}
            clock.time += SHOWN_S
            assert engines_of(await read(watch)).keys() == {"other", "new"}


async def test_one_that_is_told_to_go_drains_and_has_left() -> None:
    app = await replica_app(FakeBackend())
    server = HttpServer(app, host="127.0.0.1", port=0)
    one = replica_at(await server.start())
    async with watch_of(one) as (watch, directory):
        await read(watch)
        directory.replace([])
        app.state.draining = True
        assert engines_of(await read(watch))["replica-1"]["state"] == "draining"
        await server.stop()
        view = await read(watch)
        assert engines_of(view)["replica-1"]["state"] == "left"
        assert kinds(view) == ["draining", "left"]


async def test_one_that_hangs_is_silent_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = ScriptedReplica(then="hang", status=200, headers=[])
    async with scripted(replica) as one, watch_of(one) as (watch, _):
        monkeypatch.setattr(module, "ANSWERS_WITHIN_S", 0.05)
        assert engines_of(await read(watch))["replica-1"]["state"] == "silent"
        monkeypatch.setattr(module, "ANSWERS_WITHIN_S", 30.0)
        replica.then, replica.chunks = (
            "end",
            [EngineReading(requests_running=3).model_dump_json().encode()],
        )
        view = await read(watch)
        assert engines_of(view)["replica-1"]["state"] == "ready"
        assert engines_of(view)["replica-1"]["requests_running"] == 3
        assert kinds(view) == ["silent", "back"]


def reading_of(version: str | None) -> ScriptedReplica:
    told = EngineReading(version=version).model_dump_json().encode()
    return ScriptedReplica(headers=[], chunks=[told])


def deployments_of(view: dict[str, Any]) -> list[tuple[str, str]]:
    """Engines that were deployed, and those whose place they took, the oldest first."""
    told = [one for one in reversed(view["events"]) if one["kind"] == "deployed"]
    assert all(one["build"]["engine"] == one["engine"] for one in told)
    return [(one["engine"], one["replaced"]["engine"]) for one in told]


@pytest.mark.parametrize(
    ("change", "version", "is_told"),
    [
        ({"revision": "b"}, "1", True),
        ({}, "2", True),
        ({"revision": "b"}, "2", True),
        ({"model": "other"}, "1", True),
        ({}, "1", False),  # the same again, as after a crash
        ({"revision": ""}, None, False),  # of a version that tells neither
    ],
)
async def test_an_engine_of_another_build_is_a_deployment(
    change: dict[str, str], version: str | None, is_told: bool
) -> None:
    async with (
        scripted(reading_of("1"), name="old") as one,
        scripted(reading_of(version), name="new") as two,
    ):
        old = replace(one, revision="a")
        new = replace(two, revision="a")
        new = replace(new, **change)  # type: ignore[arg-type]
        async with watch_of(old) as (watch, directory):
            view = await read(watch)
            assert engines_of(view)["old"]["revision"] == "a"
            assert engines_of(view)["old"]["version"] == "1"
            directory.replace([])
            await read(watch)
            directory.replace([new])
            view = await read(watch)
            assert deployments_of(view) == ([("new", "old")] if is_told else [])
            # Once, and those of the same build that follow are none.
            directory.replace([replace(new, replica_id="newer")])
            assert deployments_of(await read(watch)) == ([("new", "old")] if is_told else [])
    if is_told:
        [event] = [one for one in view["events"] if one["kind"] == "deployed"]
        assert event["build"] == {
            "engine": "new",
            "node": new.node,
            "model": new.model,
            "revision": new.revision,
            "version": version,
        }
        document = openapi_document()
        schema = {"$ref": "#/components/schemas/FleetView", "components": document["components"]}
        jsonschema.validate(view, schema)


async def test_a_deployment_host_by_host_takes_the_place_on_each() -> None:
    async with scripted(reading_of("1")) as one:

        def at(number: int, name: str, **change: Any) -> Replica:
            node = f"10.0.0.{number}"
            return replace(one, replica_id=name, node=node, revision="a", **change)

        first, second, other = at(1, "one"), at(2, "two"), at(2, "other", model="other")
        odd = replace(at(3, "odd"), revision="z")
        async with watch_of(first, second, other, odd) as (watch, directory):
            # Those that were there before are no deployment, whatever they are.
            assert deployments_of(await read(watch)) == []
            new = replace(at(1, "new-one"), revision="b")
            directory.replace([new, second, other, odd])
            assert deployments_of(await read(watch)) == [("new-one", "one")]
            # Both of a host at once: each takes the place of its own model.
            later = [replace(at(2, "new-two"), revision="b"), at(2, "other-again", model="other")]
            directory.replace([new, *later, odd])
            told = [("new-one", "one"), ("new-two", "two")]
            assert deployments_of(await read(watch)) == told
            # The first of a model, where nobody was before.
            directory.replace([new, *later, odd, at(4, "first", model="third")])
            assert deployments_of(await read(watch)) == told


async def test_an_update_that_starts_new_ones_first_is_told_when_the_first_is_there() -> None:
    async with scripted(reading_of("1")) as one:
        old = replace(one, replica_id="old", revision="a")
        spare = [
            replace(one, replica_id=f"new-{number}", node=f"10.0.1.{number}", revision="b")
            for number in range(2)
        ]
        async with watch_of(old) as (watch, directory):
            await read(watch)
            directory.replace([old, spare[0]])
            assert deployments_of(await read(watch)) == [("new-0", "old")]
            directory.replace([old, *spare])
            assert deployments_of(await read(watch)) == [("new-0", "old")]
            # Another of those that there are is none.
            directory.replace([old, *spare, replace(old, replica_id="more", node="10.0.2.1")])
            assert deployments_of(await read(watch)) == [("new-0", "old")]


@pytest.mark.parametrize(
    ("status", "body", "state"),
    [
        (404, b"{}", "ready"),  # of an older version
        (200, b'{"requests_running": "many"}', "ready"),
        (200, b'{"requests_running": 1, "of_a_later_version": {}}', "ready"),
        (401, b"{}", "lost"),
    ],
)
async def test_other_versions_and_other_owners_of_the_port(
    status: int, body: bytes, state: str
) -> None:
    replica = ScriptedReplica(status=status, headers=[], chunks=[body])
    async with scripted(replica) as one, watch_of(one) as (watch, _):
        assert engines_of(await read(watch))["replica-1"]["state"] == state


async def test_only_gateways_read_replicas() -> None:
    async with fake_replica() as one, httpx.AsyncClient(base_url=one.url) as client:
        assert (await client.get(READING_PATH)).status_code == 401
        headers = {"Authorization": f"Bearer {SECRET}"}
        told = await client.get(READING_PATH, headers=headers)
        assert EngineReading.model_validate_json(told.content).kv_cache_blocks_total == 1024


def test_a_host_as_it_is_read() -> None:
    readings = [
        Reading(MEMORY_TOTAL, 64.0),
        Reading(TEMPERATURE, 41.5, "one"),
        Reading(TEMPERATURE, 47.0, "two"),
    ]
    told = HostReader(lambda: readings, "Apple M4", "mini-1.local").read()
    assert (told.name, told.chip) == ("mini-1", "Apple M4")
    assert (told.memory_total_bytes, told.temperature_celsius) == (64, 47.0)
    assert told.thermal_pressure_level is None


@pytest.mark.parametrize("wants", [True, False])
async def test_a_stream_that_moves_says_from_where_to_where(wants: bool) -> None:
    cut, other = Cut(await replica_app(FakeBackend())), Cut(await replica_app(FakeBackend()))
    async with (
        serving(cut) as url,
        serving(other) as other_url,
        gateway([replica_at(url, name="a")], watches=True) as running,
    ):
        second = replace(replica_at(other_url, name="b"), node="10.0.0.3")
        running.directory.replace([replica_at(url, name="a"), second])
        content = " ".join(map(str, range(30)))
        body = {**CHAT, **STREAM, "messages": [{"role": "user", "content": content}]}
        cut.after_bytes = 2000
        headers = {"X-Pomona-Served-By": "1"} if wants else {}
        answer = await running.client.post(CHAT_PATH, json=body, headers=headers)
        view = (await running.client.get(FLEET)).json()
        while "moved" not in kinds(view):
            view = (await running.client.get(FLEET)).json()
    events = answer.text.split("\n\n")
    told = [one.split()[2:] for one in events if one.startswith(": served-by")]
    [moved] = [one for one in view["events"] if one["kind"] == "moved"]
    assert (moved["engine"], moved["to_engine"], moved["to_node"]) == ("a", "b", "10.0.0.3")
    assert 0 < moved["tokens"] < 30
    if wants:
        assert told == [["a", "10.0.0.2", "0"], ["b", "10.0.0.3", str(moved["tokens"])]]
    else:
        assert told == []


async def test_a_header_that_asks_for_neither_is_refused() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        headers = {"X-Pomona-Served-By": "yes"}
        refused = await running.client.post(CHAT_PATH, json=CHAT, headers=headers)
        assert (refused.status_code, error_of(refused)["param"]) == (400, "X-Pomona-Served-By")


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 500)), min_size=1, max_size=200))
def test_rates_are_those_of_the_counter(steps: list[tuple[int, int]]) -> None:
    rates, at, counted = Rates(), 0.0, 0
    rates.add(Sample(at, 0, 0))
    for tenths, tokens in steps:
        at, counted = at + tenths / 10, counted + tokens
        rates.add(Sample(at, 2 * counted, counted))
    prompt, generation = rates.now
    fastest = max(tokens / (tenths / 10) for tenths, tokens in steps)
    assert 0 <= generation <= fastest + 0.1
    assert prompt == pytest.approx(2 * generation, abs=0.2)
    history = rates.generation_history
    assert len(history) <= min(MOST_HISTORY, at / HISTORY_EVERY_S)
    assert all(one <= fastest + 0.1 for one in history)
    rates.stop()
    assert rates.now == (0.0, 0.0)


def test_a_steady_engine_has_a_steady_rate() -> None:
    rates = Rates()
    for second in range(1200):
        rates.add(Sample(float(second), 0, 50 * second))
    assert rates.now == (0.0, 50.0)
    assert rates.generation_history == [50.0] * MOST_HISTORY


def test_the_feed_keeps_the_latest() -> None:
    feed = Feed(now=lambda: 1.0)
    for _ in range(MOST_EVENTS + 5):
        feed.tell("joined", replica_at("http://a"))
    assert [one.id for one in feed.events] == list(range(MOST_EVENTS + 5, 5, -1))
