"""Merging the deltas of a request's prompts: what nobody reads holds the backend back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from deployments.backend import Delta, GenerationRequest, Prefill, SamplingParams
from deployments.replica.generation import MOST_AT_ONCE, MOST_UNREAD, ChoiceDelta, Generation
from tests.support.deployments.fake_backend import FakeBackend

NUM_TOKENS = 2 * MOST_UNREAD


class EagerBackend(FakeBackend):
    """Makes the next delta whenever it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.num_made = 0

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Prefill, None]:
        for number in range(NUM_TOKENS):
            self.num_made += 1
            reason = "length" if number == NUM_TOKENS - 1 else None
            yield Delta(
                index=0,
                text="",
                token_ids=(number,),
                finish_reason=reason,
                num_prompt_tokens=1,
                num_cached_tokens=0,
            )
            await asyncio.sleep(0)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("num_prompts", [1, 3])
async def test_what_nobody_reads_is_bounded_and_nothing_of_it_is_lost(num_prompts: int) -> None:
    backend = EagerBackend()
    requests = [
        GenerationRequest(str(prompt), (1,), SamplingParams()) for prompt in range(num_prompts)
    ]
    async with Generation(backend, requests) as generation:
        await turns(2 * NUM_TOKENS)
        assert backend.num_made <= MOST_UNREAD + num_prompts
        read: list[ChoiceDelta] = []
        while not generation.finished:
            batch = await generation.next()
            assert len(batch) <= MOST_AT_ONCE
            read += batch
    for prompt in range(num_prompts):
        tokens = [delta.token_ids[0] for choice, delta in read if choice == prompt]
        assert tokens == [*range(NUM_TOKENS)]


async def test_one_that_waits_to_be_read_can_be_left() -> None:
    backend = EagerBackend()
    async with (
        asyncio.timeout(60),
        Generation(backend, [GenerationRequest("a", (1,), SamplingParams())]),
    ):
        await turns(2 * NUM_TOKENS)
    made = backend.num_made
    await turns(10)
    assert backend.num_made == made
