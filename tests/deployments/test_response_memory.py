"""The store of responses: who finds what, what it costs, what has to go."""

from __future__ import annotations

import random

import pytest

from deployments.gateway.responses.memory import MemoryStore
from deployments.gateway.responses.store import StoredItem, StoredResponse


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def store_of(
    max_bytes: int = 1 << 20, max_bytes_per_key: int = 1 << 20, clock: Clock | None = None
) -> MemoryStore:
    return MemoryStore(
        max_bytes=max_bytes,
        max_bytes_per_key=max_bytes_per_key,
        max_age_s=60,
        now=clock or Clock(),
    )


def item(item_id: str, num_bytes: int = 10) -> StoredItem:
    return StoredItem(item_id, b'"' + b"x" * (num_bytes - 2) + b'"')


def response(response_id: str, *ids: str, num_bytes: int = 10, answer: str = "") -> StoredResponse:
    return StoredResponse(
        response_id,
        b'{"id":"%b"}' % response_id.encode(),
        tuple(item(one, num_bytes) for one in ids),
        (item(answer or f"of-{response_id}", num_bytes),),
    )


async def test_what_was_put_is_found_whole() -> None:
    store, kept = store_of(), response("a", "1", "2")
    assert await store.put("t", kept)
    assert await store.get("t", "a") == kept
    assert kept.json() == b'{"id":"a","output":["xxxxxxxx"]}'
    assert await store.items("t", ["2", "of-a", "3"]) == {
        "2": kept.input[1].json,
        "of-a": kept.output[0].json,
    }


async def test_a_tenant_finds_only_its_own() -> None:
    store = store_of()
    await store.put("t", response("a", "1"))
    assert await store.get("u", "a") is None
    assert await store.items("u", ["1"]) == {}
    assert not await store.delete("u", "a")
    assert await store.get("t", "a") is not None


async def test_the_beginning_that_responses_share_is_held_once() -> None:
    store = store_of()
    await store.put("t", response("a", "1", num_bytes=5000))
    alone = (await store.stats()).num_bytes
    await store.put("t", response("b", "1", "of-a", num_bytes=5000))
    added = (await store.stats()).num_bytes - alone
    # Its own answer, and what each response costs.
    assert 5000 < added < 7000
    store.check_integrity()
    assert await store.delete("t", "a")
    kept = await store.get("t", "b")
    assert kept is not None
    assert [one.id for one in kept.items] == ["1", "of-a", "of-b"]
    assert await store.items("t", ["of-a"])
    assert await store.delete("t", "b")
    assert await store.items("t", ["of-a", "1"]) == {}
    assert (await store.stats()).num_bytes == 0
    store.check_integrity()


async def test_the_same_id_replaces() -> None:
    store = store_of()
    await store.put("t", response("a", "1"))
    before = await store.stats()
    await store.put("t", response("a", "1"))
    assert (await store.stats()) == before
    await store.put("t", response("a", "2"))
    assert await store.items("t", ["1"]) == {}
    store.check_integrity()


async def test_the_least_recently_used_goes_first() -> None:
    store = store_of(max_bytes=10_000)
    for name in "ab":
        await store.put("t", response(name, num_bytes=3000))
    assert await store.get("t", "a")
    await store.put("u", response("c", num_bytes=3000))
    assert await store.get("t", "b") is None
    assert await store.get("t", "a")
    assert await store.get("u", "c")
    assert (await store.stats()).num_evicted == {"memory": 1}
    store.check_integrity()


async def test_a_key_that_has_its_part_displaces_only_itself() -> None:
    store = store_of(max_bytes=1 << 20, max_bytes_per_key=10_000)
    await store.put("u", response("kept", num_bytes=3000))
    for number in range(20):
        assert await store.put("t", response(f"{number}", num_bytes=3000))
    assert await store.get("u", "kept")
    assert await store.get("t", "19")
    assert await store.get("t", "0") is None
    assert (await store.stats()).num_evicted == {"key": 18}
    # Without keys there is one tenant, which may have all.
    for number in range(20):
        assert await store.put("", response(f"{number}", num_bytes=3000))
    assert await store.get("", "0")


@pytest.mark.parametrize(("tenant", "fits"), [("t", False), ("", True)])
async def test_what_no_room_could_hold_displaces_nothing(tenant: str, fits: bool) -> None:
    store = store_of(max_bytes=30_000, max_bytes_per_key=10_000)
    await store.put(tenant, response("small"))
    assert await store.put(tenant, response("large", num_bytes=20_000)) == fits
    assert await store.get(tenant, "small")
    assert (await store.get(tenant, "large") is not None) == fits


async def test_the_old_goes_whoever_uses_it() -> None:
    clock = Clock()
    store = store_of(clock=clock)
    await store.put("t", response("a"))
    clock.time = 30
    await store.put("t", response("b"))
    clock.time = 59
    assert await store.get("t", "a")
    clock.time = 60
    assert await store.get("t", "a") is None
    assert not await store.delete("t", "a")
    assert (await store.items("t", ["of-a", "of-b"])).keys() == {"of-b"}
    clock.time = 90
    stats = await store.stats()
    assert (stats.num_responses, stats.num_bytes, stats.num_evicted) == (0, 0, {"age": 2})
    store.check_integrity()


async def test_an_item_with_another_content_is_another_item() -> None:
    store = store_of()
    await store.put("t", response("a", "1", num_bytes=10))
    await store.put("t", response("b", "1", num_bytes=20))
    first, second = await store.get("t", "a"), await store.get("t", "b")
    assert first is not None
    assert second is not None
    assert (len(first.input[0].json), len(second.input[0].json)) == (10, 20)
    store.check_integrity()
    await store.delete("t", "b")
    store.check_integrity()
    await store.delete("t", "a")
    store.check_integrity()


async def test_accounts_add_up_whatever_is_done() -> None:
    draw, clock = random.Random(3), Clock()
    store = store_of(max_bytes=20_000, max_bytes_per_key=12_000, clock=clock)
    for _ in range(2000):
        clock.time += draw.random() * 4
        tenant, name = draw.choice(["t", "u", ""]), f"r{draw.randrange(20)}"
        match draw.randrange(4):
            case 0 | 1:
                ids = [f"i{draw.randrange(30)}" for _ in range(draw.randrange(5))]
                await store.put(
                    tenant, response(name, *ids, num_bytes=draw.choice([100, 100, 900]))
                )
            case 2:
                await store.get(tenant, name)
            case 3:
                await store.delete(tenant, name)
        store.check_integrity()
        assert (await store.stats()).num_bytes <= 20_000
    assert {*(await store.stats()).num_evicted} == {"age", "key", "memory"}
