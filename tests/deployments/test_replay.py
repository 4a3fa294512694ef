"""Tokens that another replica has sent already: replayed exactly, cheaply, and in small parts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deployments.backend import Delta, GenerationRequest, SamplingParams, TokenLogprob
from deployments.protocol import ChatCompletionRequest, CompletionRequest
from deployments.replica import render as replica_render
from deployments.replica.generation import MAX_MERGED, Generation
from deployments.replica.render import renderer_for
from deployments.wire.envelope import ENVELOPE_HEADER, Envelope
from tests.support.deployments.fake_backend import FakeBackend, token_id
from tests.support.deployments.replica_server import build, chat, completion, in_memory

NUM_TOKENS = 20 * MAX_MERGED


class Replayer(FakeBackend):
    """Has everything to replay at once, and then one token to say."""

    async def generate(self, request: GenerationRequest) -> Any:
        for token in request.resume[0]:
            yield Delta(0, " word", (token,), 10, 0, replayed=True)
        yield Delta(0, " end", (1,), 10, 0, finish_reason="stop")


def resumed(num_tokens: int) -> GenerationRequest:
    return GenerationRequest(
        "a", "hello", SamplingParams(seed=1), resume=(tuple(range(num_tokens)),)
    )


async def test_a_replay_lets_other_tasks_have_their_turn() -> None:
    sizes = []
    async with Generation(Replayer(), [resumed(NUM_TOKENS)]) as generation:
        while not generation.finished:
            sizes.append(len(await generation.next()))
    assert sum(sizes) == NUM_TOKENS + 1
    assert max(sizes) <= MAX_MERGED


async def test_other_tasks_run_between_the_parts_of_a_replay() -> None:
    num_turns = 0

    async def turn() -> None:
        nonlocal num_turns
        while True:
            await asyncio.sleep(0)
            num_turns += 1

    turning = asyncio.create_task(turn())
    async with Generation(Replayer(), [resumed(NUM_TOKENS)]) as generation:
        while not generation.finished:
            await generation.next()
    turning.cancel()
    assert num_turns >= NUM_TOKENS // MAX_MERGED


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat("w " * 100)),
        ("/v1/chat/completions", chat("w " * 100, logprobs=True, top_logprobs=3)),
        ("/v1/completions", completion("w " * 100, logprobs=3, max_tokens=500)),
    ],
)
async def test_what_is_replayed_is_not_encoded(
    monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    encoded = 0
    encode = replica_render._encode

    def counted(value: Any) -> str:
        nonlocal encoded
        encoded += 1
        return encode(value)

    monkeypatch.setattr(replica_render, "_encode", counted)
    app, _ = await build(max_model_len=1000)
    counts = []
    async with in_memory(app) as client:
        for num_tokens in (1, 99):
            log = b"0=0 0:%d " % token_id("w") + b"0:%d " % token_id(" w") * (num_tokens - 1)
            encoded = 0
            request = client.build_request("POST", path, json=body | {"stream": True})
            response = await client.post(
                path,
                content=request.content + log,
                headers={ENVELOPE_HEADER: Envelope.seal().with_log(log).header()},
            )
            assert "data: [DONE]" in response.text
            counts.append(encoded)
    assert counts[1] < counts[0] / 10


LOGPROBS = [
    TokenLogprob(number, piece.decode(errors="replace"), piece, -0.5)
    for number, piece in enumerate(["é".encode()[:1], "é".encode()[1:], b" a", "🍎".encode(), b"!"])
]


@pytest.mark.parametrize("num_replayed", range(len(LOGPROBS) + 1))
@pytest.mark.parametrize(
    "request_of",
    [
        lambda: ChatCompletionRequest.model_validate(chat(logprobs=True)),
        lambda: CompletionRequest.model_validate(completion(logprobs=0)),
        lambda: CompletionRequest.model_validate(completion()),
    ],
)
def test_what_follows_a_replay_is_what_would_have_followed(
    request_of: Any, num_replayed: int
) -> None:
    deltas = [Delta(0, one.text, (one.token_id,), 3, 0, (one,)) for one in LOGPROBS]
    request, envelope = request_of(), Envelope("id", 1, 2)
    whole, rest = renderer_for(request, envelope), renderer_for(request, envelope)
    expected = [whole.chunks(0, delta) for delta in deltas]
    for delta in deltas[:num_replayed]:
        rest.replay(0, delta)
    assert [rest.chunks(0, delta) for delta in deltas[num_replayed:]] == expected[num_replayed:]
