from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from starlette.types import Message, Receive, Scope, Send

from deployments.http.drain_request import READ_FACTOR, WholeRequestMiddleware
from deployments.http.response_events import ResponseEventsMiddleware

CHUNK = 1000


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 401, "headers": []})
    await send({"type": "http.response.body", "body": b"no"})


async def read_first(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await refuse(scope, receive, send)


async def events(
    app: object, sent: Iterable[Message], headers: Sequence[tuple[bytes, bytes]] = ()
) -> list[str]:
    """What was received and sent, in order."""
    order, messages = list[str](), iter(sent)

    async def receive() -> Message:
        order.append("received")
        return next(messages)

    async def send(message: Message) -> None:
        order.append(message["type"].removeprefix("http.response."))

    middleware = WholeRequestMiddleware(app, max_body_bytes=CHUNK)  # type: ignore[arg-type]
    await ResponseEventsMiddleware(middleware)(
        {"type": "http", "headers": list(headers)}, receive, send
    )
    return order


def chunks(count: int) -> list[Message]:
    return [
        {"type": "http.request", "body": b"x" * CHUNK, "more_body": number < count - 1}
        for number in range(count)
    ]


@pytest.mark.parametrize("app", [refuse, read_first])
async def test_an_answer_follows_its_whole_request(app: object) -> None:
    order = await events(app, chunks(3))
    assert order == ["received"] * 3 + ["start", "body"]


async def test_there_is_an_end_to_what_is_read() -> None:
    order = await events(refuse, chunks(100))
    assert order == ["received"] * (READ_FACTOR + 1) + ["start", "body"]


async def test_a_client_that_leaves_is_not_waited_for() -> None:
    order = await events(refuse, [chunks(2)[0], {"type": "http.disconnect"}])
    assert order == ["received"] * 2 + ["start", "body"]


@pytest.mark.parametrize(
    "header",
    [(b"expect", b"100-continue"), (b"content-length", str(READ_FACTOR * CHUNK + 1).encode())],
)
async def test_what_is_not_worth_the_wait_is_refused_at_once(header: tuple[bytes, bytes]) -> None:
    assert await events(refuse, chunks(3), [header]) == ["start", "body"]
