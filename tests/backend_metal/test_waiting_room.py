"""Who may wait for the engine, and how many at a time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.engine.requests.waiting_room import WaitingRoom, retry_after
from deployments.backend import FailureKind, GenerationRequest, QueueFullError, SamplingParams
from tests.support.fuzzing import fuzz


def request(
    name: object, tenant: str = "", *, n: int = 1, resumed: bool = False
) -> GenerationRequest:
    return GenerationRequest(
        str(name),
        (1,),
        SamplingParams(seed=1),
        n=n,
        tenant=tenant,
        resume=((),) * n if resumed else (),
    )


def fill(room: WaitingRoom, tenant: str, most: int = 1000) -> int:
    """As many requests as are let in."""
    for number in range(most):
        try:
            room.enter(request(f"{tenant} {number}", tenant), seconds_per_request=1.0)
        except QueueFullError:
            return number
    return most


def busy_room(max_queued_requests: int, max_num_seqs: int = 4) -> WaitingRoom:
    room = WaitingRoom(max_num_seqs, max_queued_requests)
    for number in range(max_num_seqs):
        room.enter(request(number, "runs"), seconds_per_request=1.0)
        room.begin(str(number))
    return room


def test_without_keys_all_of_it_may_be_taken() -> None:
    room = busy_room(8)
    assert fill(room, "") == 8
    with pytest.raises(
        QueueFullError, match="8 requests are waiting, as many as max_queued"
    ) as error:
        room.enter(request("more"), seconds_per_request=1.0)
    assert error.value.failure is FailureKind.FULL


def test_a_tenant_has_no_more_than_is_left_for_others() -> None:
    room = busy_room(256)
    assert [fill(room, name) for name in "abcd"] == [128, 64, 32, 16]
    with pytest.raises(QueueFullError, match="as many requests of this API key") as error:
        room.enter(request("more", "a"), seconds_per_request=1.0)
    assert error.value.failure is FailureKind.FULL_FOR_TENANT
    for number in range(128):
        room.leave(f"a {number}")
    assert fill(room, "e") == 72


def test_places_that_are_free_in_the_batch_come_on_top() -> None:
    assert fill(WaitingRoom(32, 256), "alone") == 32 + 128
    assert fill(WaitingRoom(32, 256), "") == 32 + 256
    assert fill(WaitingRoom(32, 0), "alone") == 32
    assert fill(busy_room(0), "alone") == 0
    assert fill(busy_room(1), "alone") == 1


def test_sequences_take_places_and_a_request_waits_as_one() -> None:
    room = WaitingRoom(32, 2)
    for name in ("one", "two"):
        room.enter(request(name, n=16), seconds_per_request=1.0)
        room.begin(name)
    for number in range(2):
        room.enter(request(number, n=16), seconds_per_request=1.0)
    with pytest.raises(QueueFullError, match="2 requests are waiting"):
        room.enter(request("more"), seconds_per_request=1.0)


def test_what_another_backend_had_let_in_needs_no_place() -> None:
    room = busy_room(1)
    assert fill(room, "") == 1
    room.enter(request("resumed", n=2, resumed=True), seconds_per_request=1.0)
    room.leave("resumed")
    room.leave(" 0")
    assert fill(room, "") == 1


def test_when_to_come_back_follows_from_what_requests_take_and_how_many_wait() -> None:
    room = busy_room(8, max_num_seqs=2)
    fill(room, "")
    with pytest.raises(QueueFullError) as error:
        room.enter(request("too many"), seconds_per_request=1.4)
    assert error.value.retry_after == math.ceil(1.4 * 8 / 2)


@pytest.mark.parametrize(
    ("num_running", "num_waiting", "seconds", "expected"),
    [(4, 8, 2.2, 5), (4, 0, 0.1, 1), (0, 3, 1.5, 5), (8, 256, 30.0, 60)],
)
def test_when_to_come_back_has_bounds(
    num_running: int, num_waiting: int, seconds: float, expected: int
) -> None:
    told = retry_after(
        num_running=num_running, num_waiting=num_waiting, seconds_per_request=seconds
    )
    assert told == expected


@fuzz(200)
@given(
    events=st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=120),
    max_queued_requests=st.integers(4, 40),
)
def test_two_tenants_leave_room_for_a_third(
    events: list[tuple[bool, int]], max_queued_requests: int
) -> None:
    room = busy_room(max_queued_requests)
    inside: set[str] = set()
    for enters, number in events:
        name = f"request {number}"
        if not enters:
            room.leave(name)
            inside.discard(name)
        elif name not in inside:
            try:
                room.enter(request(name, f"tenant {number % 2}"), seconds_per_request=1.0)
                inside.add(name)
            except QueueFullError:
                assert len(inside) >= max_queued_requests // 2
    assert len(inside) < max_queued_requests
    room.enter(request("third", "third"), seconds_per_request=1.0)
