from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest

from deployments.gateway.relay.whole_answer import WholeReader
from deployments.wire.beats import beat

USAGE = {"prompt_tokens": 5, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1}}


class Content:
    """What ``ReplicaResponse`` is here: chunks, then the end, or silence."""

    def __init__(self, chunks: Iterable[bytes], *, ends: bool = True) -> None:
        self._chunks = iter(chunks)
        self._ends = ends

    async def readany(self) -> bytes:
        chunk = next(self._chunks, b"")
        if not chunk and not self._ends:
            await asyncio.Event().wait()
        return chunk


async def read(reader: WholeReader, *chunks: bytes) -> bytes:
    return await reader.read(Content(chunks))  # type: ignore[arg-type]


async def test_usage_has_the_last_word() -> None:
    reader = WholeReader()
    # A text may look like a usage, and a replica's encoder may leave out all spaces.
    told = {"choices": [{"text": 'x","usage":{"prompt_tokens":1}'}], "usage": USAGE}
    body = json.dumps(told, separators=(",", ":")).encode()
    assert await read(reader, beat(2), beat(0) + body[:9], body[9:]) == body
    assert (reader.prompt_tokens, reader.completion_tokens) == (5, 9)


async def test_beats_tell_of_an_answer_that_nobody_waited_for() -> None:
    reader = WholeReader()
    content = Content([beat(0), beat(3), beat(2)], ends=False)
    reading = asyncio.ensure_future(reader.read(content))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert (reader.prompt_tokens, reader.completion_tokens) == (0, 5)
    # Another replica begins anew.
    assert await read(reader, beat(1), b'{"error":{}}') == b'{"error":{}}'
    assert (reader.prompt_tokens, reader.completion_tokens) == (0, 1)


@pytest.mark.parametrize(
    "body", [b"", b'"usage":', b'"usage":[]', b'{"usage":{}}', b'"usage":\xff']
)
async def test_a_body_without_usage_is_as_good(body: bytes) -> None:
    reader = WholeReader()
    assert await read(reader, beat(2), body) == body
    assert (reader.prompt_tokens, reader.completion_tokens) == (0, 2)
