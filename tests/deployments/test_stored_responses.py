"""Responses that are kept: gone on with, told again, forgotten; by every gateway, for each key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openresponses_types.types as open_responses
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from deployments.gateway.access.api_keys import ApiKey, KeyRing
from deployments.gateway.access.rate_limits import RateLimits
from deployments.gateway.responses import shared
from deployments.gateway.responses.memory import MemoryStore
from deployments.gateway.responses.shared import SharedStore
from deployments.gateway.responses.store import (
    StoredResponse,
    StoreStats,
    StoreUnavailableError,
)
from deployments.observe.metrics import GatewayMetrics
from deployments.protocol import crowded_body
from tests.support.deployments import openai_types
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import (
    Running,
    fake_replica,
    gateway,
    replica_app,
    replica_at,
    serving,
)
from tests.support.deployments.scripted_backend import ANSWER, Scripted

PATH = "/v1/responses"
TOOLS = [{"type": "function", "name": "weather"}, {"type": "function", "name": "time"}]
ASKED: dict[str, Any] = {"model": "demo", "input": "How is it?", "tools": TOOLS}
KEYS = KeyRing([ApiKey.of("first", "a-first-key"), ApiKey.of("second", "another-key")])
FIRST, SECOND = ({"Authorization": f"Bearer {key}"} for key in ("a-first-key", "another-key"))


def memory(max_bytes: int = 1 << 20, max_bytes_per_key: int = 1 << 20) -> MemoryStore:
    return MemoryStore(max_bytes=max_bytes, max_bytes_per_key=max_bytes_per_key, max_age_s=3600)


@dataclass
class Pair:
    """Two gateways that share a store, in front of one replica."""

    one: Running
    other: Running
    backend: Scripted
    store: MemoryStore

    async def ask(self, headers: Mapping[str, str] | None = None, **fields: Any) -> Any:
        return await whole(self.one.client, headers, **fields)


async def whole(
    client: httpx.AsyncClient, headers: Mapping[str, str] | None = None, **fields: Any
) -> Any:
    response = await client.post(PATH, json=ASKED | fields, headers=headers)
    assert response.status_code == 200, response.text
    openai_types.response(response.json())
    open_responses.ResponseResource.model_validate(response.json())
    return response.json()


@asynccontextmanager
async def pair(
    answer: str = ANSWER, store: MemoryStore | None = None, **fields: Any
) -> AsyncIterator[Pair]:
    backend, store = Scripted(answer), store or memory()
    async with (
        serving(await replica_app(backend)) as url,
        gateway([replica_at(url)], responses=store, **fields) as one,
        gateway([replica_at(url)], responses=store, **fields) as other,
    ):
        yield Pair(one, other, backend, store)
    store.check_integrity()


def last_response(stream: str) -> Any:
    [*_, last] = [part for part in stream.split("\n\n") if part.startswith("event: ")]
    return json.loads(last.partition("\ndata: ")[2].partition("\nid: ")[0])["response"]


async def test_another_gateway_tells_it_as_it_was() -> None:
    async with pair() as gateways:
        told = await gateways.ask(metadata={"a": "b"}, instructions="Be brief.")
        assert told["store"] is True
        again = await gateways.other.client.get(f"{PATH}/{told['id']}")
        assert again.status_code == 200
        assert again.json() == told


async def test_a_stream_is_kept_at_its_end() -> None:
    async with pair() as gateways:
        response = await gateways.one.client.post(PATH, json=ASKED | {"stream": True})
        told = last_response(response.text)
        assert told["store"] is True
        assert response.text.endswith("data: [DONE]\n\n")
        assert (await gateways.other.client.get(f"{PATH}/{told['id']}")).json() == told


async def test_a_stream_that_its_client_left_is_not_kept() -> None:
    backend, store = FakeBackend(), memory()
    backend.hold(after_tokens=1)
    body = ASKED | {"stream": True, "tools": []}
    async with fake_replica(backend) as one, gateway([one], responses=store) as running:
        async with running.client.stream("POST", PATH, json=body) as told:
            assert await anext(told.aiter_lines())
        await backend.live.reaches(0)
        backend.release()
        await whole(running.client, tools=[], store=False)
        assert (await store.stats()).num_responses == 0


async def test_the_next_goes_on_with_all_that_was_said() -> None:
    async with pair() as gateways:
        asked = gateways.backend.asked
        first = await gateways.ask(instructions="Be brief.")
        calls = [item for item in first["output"] if item["type"] == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": "x"}
            for call in calls
        ]
        second = await whole(gateways.other.client, previous_response_id=first["id"], input=results)
        assert second["previous_response_id"] == first["id"]
        # Instructions are those of each request.
        assert second["instructions"] is None
        third = await gateways.ask(
            previous_response_id=second["id"], input="Go on.", instructions="Be long."
        )
        items = [{"role": "user", "content": "How is it?"}, *first["output"], *results]
        by_hand = [*items, *second["output"], {"role": "user", "content": "Go on."}]
        await gateways.ask(input=by_hand, instructions="Be long.", store=False)
        assert asked[2].prompt.messages == asked[3].prompt.messages
        assert asked[2].prompt.messages[0] == {"role": "system", "content": "Be long."}
        assert len(asked[1].prompt.messages) < len(asked[2].prompt.messages)
        assert third["store"] is True


async def test_two_go_on_with_the_same_response() -> None:
    async with pair() as gateways:
        first = await gateways.ask()
        for text in ("One way.", "Another way."):
            await gateways.ask(previous_response_id=first["id"], input=text)
        one, other = (request.prompt.messages for request in gateways.backend.asked[1:])
        assert one[:-1] == other[:-1]
        assert (one[-1]["content"], other[-1]["content"]) == ("One way.", "Another way.")


async def test_a_longer_conversation_begins_as_it_did_before() -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([one], responses=memory()) as running:
        previous = None
        for words in ("one two three", "four five", "six"):
            fields = {"input": words, "previous_response_id": previous, "tools": []}
            previous = (await whole(running.client, **fields))["id"]
        first, second, third = (request.prompt.messages for request in backend.requests)
        assert second[: len(first)] == first
        assert third[: len(second)] == second
        assert [message["role"] for message in third] == ["user", "assistant"] * 2 + ["user"]


async def test_items_are_named_by_id_as_the_ai_sdk_does() -> None:
    async with pair() as gateways:
        first = await gateways.ask()
        said = [{"type": "item_reference", "id": item["id"]} for item in first["output"][:2]]
        calls = [{"id": item["id"]} for item in first["output"][2:]]
        user = {"role": "user", "content": "How is it?"}
        again = {"role": "user", "content": "And now?"}
        second = await whole(gateways.other.client, input=[user, *said, *calls, again])
        await gateways.ask(input=[user, *first["output"], again])
        by_name, by_hand = gateways.backend.asked[1:]
        assert by_name.prompt.messages == by_hand.prompt.messages
        # They stay with whatever has them.
        await gateways.one.client.delete(f"{PATH}/{first['id']}")
        await gateways.ask(input=[user, *said, again])
        await gateways.one.client.delete(f"{PATH}/{second['id']}")


async def test_input_items_are_told_in_pages() -> None:
    items = [
        {"role": "developer", "content": "Rules."},
        {"role": "user", "content": [{"type": "input_text", "text": one} for one in "ab"]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"role": "assistant", "content": "Yes?"},
        {"type": "function_call", "call_id": "c", "name": "time", "arguments": '{"a": "ü"}'},
        {"type": "function_call_output", "call_id": "c", "output": "noon"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "d"}
        | {"output": [{"type": "input_text", "text": one} for one in "ab"]},
    ]
    async with pair() as gateways:
        told = await gateways.ask(input=items)
        path = f"{PATH}/{told['id']}/input_items"
        client = gateways.other.client
        page = (await client.get(path, params={"order": "asc"})).json()
        assert [item["type"] for item in page["data"]] == [
            item.get("type", "message") for item in items
        ]
        assert [item.get("role") for item in page["data"]] == [item.get("role") for item in items]
        assert [part["text"] for part in page["data"][1]["content"]] == ["a", "b"]
        assert json.loads(page["data"][4]["arguments"]) == {"a": "ü"}
        assert page["data"][5]["output"] == "noon"
        known: TypeAdapter[Any] = TypeAdapter(ResponseItem)
        for item in page["data"]:
            openai_types.known(known.validate_python(item))
        ids = [item["id"] for item in page["data"]]
        assert len(set(ids)) == len(items)
        assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[0], ids[-1], False)
        newest = (await client.get(path, params={"limit": 3})).json()
        assert [item["id"] for item in newest["data"]] == ids[:-4:-1]
        assert newest["has_more"] is True
        assert newest["last_id"] == ids[-3]
        # The client of OpenAI turns the pages.
        openai = AsyncOpenAI(base_url=f"{gateways.one.url}/v1", api_key="x", max_retries=0)
        listed = [one.id async for one in openai.responses.input_items.list(told["id"], limit=3)]
        await openai.close()
        assert listed == ids[::-1]
        # The next response's input is all of it.
        following = await gateways.ask(previous_response_id=told["id"], input="Go on.")
        listed = (
            await client.get(
                f"{PATH}/{following['id']}/input_items", params={"order": "asc", "limit": 100}
            )
        ).json()
        output = [item["id"] for item in told["output"]]
        assert [item["id"] for item in listed["data"]][:-1] == [*ids, *output]


async def test_the_openai_client_retrieves_and_deletes() -> None:
    async with pair("Just text.") as gateways:
        client = AsyncOpenAI(base_url=f"{gateways.one.url}/v1", api_key="x", max_retries=0)
        made = await client.responses.create(model="demo", input="Hi.", store=True)
        assert await client.responses.retrieve(made.id) == made
        await client.responses.delete(made.id)
        for ask in (
            client.responses.retrieve,
            client.responses.delete,
            client.responses.cancel,
            client.responses.input_items.list,
        ):
            with pytest.raises(NotFoundError) as caught:
                await ask(made.id)
            assert caught.value.code == "response_not_found"
        with pytest.raises(BadRequestError) as refused:
            await client.responses.create(model="demo", input="x", previous_response_id=made.id)
        assert refused.value.code == "previous_response_not_found"
        assert refused.value.param == "previous_response_id"
        await client.close()


async def test_store_false_keeps_nothing() -> None:
    async with pair() as gateways:
        told = await gateways.ask(store=False)
        assert told["store"] is False
        response = await gateways.one.client.post(
            PATH, json=ASKED | {"stream": True, "store": False}
        )
        assert last_response(response.text)["store"] is False
        assert (await gateways.store.stats()).num_responses == 0
        chat = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
        assert (await gateways.one.client.post("/v1/chat/completions", json=chat)).is_success
        assert (await gateways.store.stats()).num_responses == 0
        # One that is kept may be gone on with all the same.
        kept = await gateways.ask()
        await gateways.ask(previous_response_id=kept["id"], store=False)
        assert (await gateways.store.stats()).num_responses == 1


async def test_other_keys_find_nothing() -> None:
    async with pair(keys=KEYS) as gateways:
        told = await gateways.ask(FIRST)
        client = gateways.other.client
        for path in ("", "/input_items"):
            asked = f"{PATH}/{{}}{path}"
            foreign = await client.get(asked.format(told["id"]), headers=SECOND)
            nobodys = await client.get(asked.format("resp_0"), headers=SECOND)
            assert foreign.status_code == nobodys.status_code == 404
            same = foreign.json()["error"]["message"].replace(told["id"], "resp_0")
            assert same == nobodys.json()["error"]["message"]
        for method, path in (("DELETE", ""), ("POST", "/cancel")):
            response = await client.request(method, f"{PATH}/{told['id']}{path}", headers=SECOND)
            assert response.status_code == 404
        for fields, status in (
            ({"previous_response_id": told["id"]}, 400),
            ({"input": [{"type": "item_reference", "id": told["output"][0]["id"]}]}, 404),
        ):
            response = await client.post(PATH, json=ASKED | fields, headers=SECOND)
            assert response.status_code == status
        assert (await client.get(f"{PATH}/{told['id']}", headers=FIRST)).json() == told


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("?stream=true", "stream"),
        ("?starting_after=3", "starting_after"),
        ("?include=message.output_text.logprobs", "include"),
        ("?include[]=x", "include[]"),
        ("?odd=1", "odd"),
        ("?limit=3", "limit"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?limit=ten", "limit"),
        ("/input_items?limit=", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=msg_0", "after"),
        ("/input_items?before=msg_0", "before"),
    ],
)
async def test_a_wrong_parameter_is_named(path: str, param: str) -> None:
    async with pair("Just text.") as gateways:
        told = await gateways.ask(tools=[])
        response = await gateways.one.client.get(f"{PATH}/{told['id']}{path}")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
        assert param in response.json()["error"]["message"]
        fine = f"{PATH}/{told['id']}?stream=false&include_obfuscation=false"
        assert (await gateways.one.client.get(fine)).is_success


async def test_what_runs_no_more_can_not_be_cancelled() -> None:
    async with pair("Just text.") as gateways:
        told = await gateways.ask(tools=[])
        response = await gateways.one.client.post(f"{PATH}/{told['id']}/cancel")
        assert response.status_code == 400
        assert "background" in response.json()["error"]["message"]


async def test_what_is_not_found_is_named() -> None:
    async with pair() as gateways:
        reference = {"type": "item_reference", "id": "msg_0"}
        for fields, status, param in (
            ({"previous_response_id": "resp_0"}, 400, "previous_response_id"),
            ({"previous_response_id": ""}, 400, "previous_response_id"),
            ({"previous_response_id": 3}, 400, "previous_response_id"),
            ({"input": ["x"], "previous_response_id": "resp_0"}, 400, "input[0]"),
            ({"input": [{"role": "user", "content": "x"}, reference]}, 404, "input[1].id"),
            ({"input": [reference | {"x": 1}]}, 400, "input[0].x"),
            ({"input": [{"type": "item_reference"}]}, 400, "input[0].id"),
            ({"store": "yes"}, 400, "store"),
        ):
            response = await gateways.one.client.post(PATH, json=ASKED | fields)
            assert response.status_code == status, response.text
            assert response.json()["error"]["param"] == param
        assert not gateways.backend.asked


async def test_a_call_that_was_cut_short_is_gone_on_with() -> None:
    cut = ANSWER[: ANSWER.index("Köln")]
    async with pair(cut) as gateways:
        gateways.backend.finish_reason = "length"
        told = await gateways.ask()
        assert told["status"] == "incomplete"
        await gateways.ask(previous_response_id=told["id"])
        prompt = gateways.backend.asked[-1].prompt
        (call,) = [one for message in prompt.messages for one in message.get("tool_calls", ())]
        assert call["function"]["arguments"] == {"city": ""}


async def test_what_is_at_fault_behind_a_previous_response_has_its_own_place() -> None:
    async with pair() as gateways:
        first = await gateways.ask()
        response = await gateways.one.client.post(
            PATH,
            json=ASKED
            | {"previous_response_id": first["id"], "input": [{"role": "user", "content": 5}]},
        )
        assert response.json()["error"]["param"] == "input[0].content"


@pytest.mark.parametrize(
    ("texts", "param", "said"),
    [
        (["word " * 200] * 3, "previous_response_id", "more than 2048 bytes"),
        (["x"] * 3, None, None),
    ],
)
async def test_what_is_referred_to_is_bounded_as_a_body_is(
    texts: list[str], param: str | None, said: str | None
) -> None:
    async with pair("Just text.", max_body_bytes=2048) as gateways:
        previous = None
        for text in texts:
            fields = {"tools": [], "input": text, "previous_response_id": previous}
            response = await gateways.one.client.post(PATH, json=ASKED | fields)
            previous = response.json().get("id")
        assert (response.status_code == 400) == (param is not None)
        if param is not None:
            error = response.json()["error"]
            assert error["param"] == param
            assert said in error["message"]


async def test_many_small_values_add_up_over_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowded_body, "MAX_WEIGHT", 2000)
    parts = [{"type": "input_text", "text": "x"}] * 20
    async with pair("Just text.") as gateways:
        first = await gateways.ask(tools=[], input=[{"role": "user", "content": parts}] * 2)
        fields = {"tools": [], "previous_response_id": first["id"]}
        assert (await gateways.one.client.post(PATH, json=ASKED | fields)).is_success
        second = await gateways.ask(**fields, input=[{"role": "user", "content": parts}] * 2)
        fields = {"tools": [], "previous_response_id": second["id"]}
        response = await gateways.one.client.post(PATH, json=ASKED | fields)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "too_many_values"


async def test_a_keys_limits_count_what_is_referred_to() -> None:
    limits = RateLimits(tokens_per_minute=100)
    keys = KeyRing([ApiKey.of("first", "a-first-key", limits=limits)])
    fields: dict[str, Any] = {"tools": [], "max_output_tokens": 1, "input": "word " * 60}
    async with pair("Just text.", keys=keys) as gateways:
        first = await gateways.ask(FIRST, **fields)
        more = {"previous_response_id": first["id"], "store": False}
        for said, status in ((more, 429), ({}, 200)):
            response = await gateways.other.client.post(
                PATH, json=ASKED | fields | said, headers=FIRST
            )
            assert response.status_code == status, response.text


async def test_too_large_to_be_kept_is_told_and_counted() -> None:
    async with pair(store=memory(max_bytes=2000)) as gateways:
        told = await gateways.ask(input="word " * 1000)
        assert told["store"] is False
        response = await gateways.one.client.post(
            PATH, json=ASKED | {"stream": True, "input": "word " * 1000}
        )
        assert response.text.endswith("data: [DONE]\n\n")
        told = last_response(response.text)
        openai_types.response(told)
        assert told["store"] is False
        assert told["output"][1]["content"][0]["text"] == "Let me see."
        assert writes(gateways.one) == {"kept": 0, "too_large": 2, "failed": 0}


def writes(running: Running) -> dict[str, float]:
    return samples(running.metrics, "pomona_stored_response_writes_total", "outcome")


def samples(metrics: GatewayMetrics, name: str, label: str) -> dict[str, float]:
    return {
        sample.labels.get(label, ""): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


class Gone(MemoryStore):
    """Until ``answers``, it does not."""

    def __init__(self, how: str) -> None:
        super().__init__(max_bytes=1 << 20, max_bytes_per_key=1 << 20, max_age_s=60)
        self.how = how
        self.answers = False
        self.num_asked = 0

    async def _gone(self) -> None:
        self.num_asked += 1
        if self.answers:
            return
        if self.how == "hangs":
            await asyncio.Event().wait()
        if self.how == "fails":
            raise KeyError("a fault")
        raise StoreUnavailableError("its host is gone")

    async def put(self, tenant: str, response: StoredResponse) -> bool:
        await self._gone()
        return await super().put(tenant, response)

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        await self._gone()
        return await super().get(tenant, response_id)

    async def items(self, tenant: str, item_ids: Sequence[str]) -> dict[str, bytes]:
        await self._gone()
        return await super().items(tenant, item_ids)

    async def delete(self, tenant: str, response_id: str) -> bool:
        await self._gone()
        return await super().delete(tenant, response_id)

    async def stats(self) -> StoreStats:
        await self._gone()
        return await super().stats()


@pytest.mark.parametrize("how", ["hangs", "raises"])
async def test_a_store_that_is_gone_takes_nothing_with_it(
    how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "TIMEOUT_S", 0.01)
    store = Gone(how)
    async with pair(store=store) as gateways:
        told = await gateways.ask()
        assert told["store"] is False
        assert "is not kept" in caplog.text
        assert "How is it?" not in caplog.text
        # For a while it is not asked again, and nobody waits.
        response = await gateways.one.client.post(PATH, json=ASKED | {"stream": True})
        assert last_response(response.text)["store"] is False
        assert store.num_asked == 1
        assert writes(gateways.one) == {"kept": 0, "too_large": 0, "failed": 2}
        client = gateways.other.client
        missing = await client.post(PATH, json=ASKED | {"previous_response_id": told["id"]})
        assert missing.status_code == 400
        assert missing.json()["error"]["code"] == "previous_response_not_found"
        named = [{"type": "item_reference", "id": "msg_0"}]
        assert (await client.post(PATH, json=ASKED | {"input": named})).status_code == 404
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
            response = await client.request(method, f"{PATH}/{told['id']}{path}")
            assert response.status_code == 503
            assert response.headers["retry-after"]
        assert (await whole(client, store=False))["store"] is False


async def test_after_a_rest_the_store_is_asked_again() -> None:
    now = 0.0
    store, metrics = Gone("raises"), GatewayMetrics(replica="g", node="n")
    asking = SharedStore(store, metrics.stored_responses, now=lambda: now)
    kept = StoredResponse("resp_1", b"{}", (), ())
    assert not await asking.put("t", kept)
    store.answers = True
    now = shared.REST_S - 0.1
    assert not await asking.put("t", kept)
    with pytest.raises(StoreUnavailableError):
        await asking.get("t", "resp_1")
    assert store.num_asked == 1
    now = shared.REST_S
    assert await asking.put("t", kept)
    assert await asking.get("t", "resp_1") == kept


async def test_metrics_follow_the_store() -> None:
    store, metrics = Gone("raises"), GatewayMetrics(replica="g", node="n")
    store.answers = True
    asking = SharedStore(store, metrics.stored_responses, now=lambda: 0.0)
    await asking.put("t", StoredResponse("resp_1", b"{}", (), ()))
    reading = asyncio.create_task(asking.read_for_ever(every_s=0))
    while not samples(metrics, "pomona_stored_responses", "replica"):
        await asyncio.sleep(0)
    assert samples(metrics, "pomona_stored_responses", "replica") == {"g": 1}
    [num_bytes] = samples(metrics, "pomona_stored_responses_bytes", "replica").values()
    assert num_bytes == (await store.stats()).num_bytes > 0
    evicted = samples(metrics, "pomona_stored_responses_evicted_total", "reason")
    assert evicted == {"age": 0, "key": 0, "memory": 0}
    # What nobody knows is not told.
    store.answers = False
    while samples(metrics, "pomona_stored_responses", "replica"):
        await asyncio.sleep(0)
    reading.cancel()


async def test_metrics_of_the_store_outlive_an_unexpected_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, metrics = Gone("fails"), GatewayMetrics(replica="g", node="n")
    asking = SharedStore(store, metrics.stored_responses)
    reading = asyncio.create_task(asking.read_for_ever(every_s=0))
    while not store.num_asked:
        await asyncio.sleep(0)
    store.answers = True
    while not samples(metrics, "pomona_stored_responses", "replica") and not reading.done():
        await asyncio.sleep(0)
    assert not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert "KeyError: 'a fault'" in caplog.text


async def test_without_a_store_what_needs_one_is_refused_by_name() -> None:
    reference = {"type": "item_reference", "id": "x"}
    async with (
        serving(await replica_app(Scripted(ANSWER))) as url,
        gateway([replica_at(url)]) as running,
    ):
        for fields, param in (
            ({"store": True}, "store"),
            ({"previous_response_id": "resp_1"}, "previous_response_id"),
            ({"input": [reference]}, "input[0].id"),
            ({"input": [{"id": "x"}]}, "input[0].id"),
        ):
            response = await running.client.post(PATH, json=ASKED | fields)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["param"] == param
            assert "responses.max_bytes" in error["message"]
        assert (await whole(running.client))["store"] is False


async def test_a_resumed_stream_is_kept_by_whoever_ends_it() -> None:
    resumable = {"X-Pomona-Resumable": "1"}
    async with pair() as gateways:
        first = await gateways.ask()
        body = ASKED | {"stream": True, "previous_response_id": first["id"]}
        response = await gateways.one.client.post(PATH, json=body, headers=resumable)
        told = last_response(response.text)
        before = (await gateways.store.stats()).num_responses
        await gateways.one.client.delete(f"{PATH}/{told['id']}")
        events = [part for part in response.text.split("\n\n") if part.startswith("event: ")]
        _, _, last_id = events[5].partition("\nid: ")
        rest = await gateways.other.client.post(
            PATH, json=body, headers=resumable | {"Last-Event-ID": last_id}
        )
        again = last_response(rest.text)
        assert (again["id"], again["store"]) == (told["id"], True)
        assert again["output"] == told["output"]
        assert (await gateways.store.stats()).num_responses == before
        assert (await gateways.one.client.get(f"{PATH}/{told['id']}")).json() == again
