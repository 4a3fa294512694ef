"""Tokens that another replica has sent already: replayed exactly, and cheaply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deployments.backend import Delta, Prefill, TokenLogprob
from deployments.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    ParsedRequest,
)
from deployments.replica import answer_json, chat_renderer, completion_renderer
from deployments.replica.prompts import Prompts
from deployments.replica.render import renderer_for
from deployments.wire.envelope import ENVELOPE_HEADER, Envelope
from tests.support.deployments.bodies import TOLD
from tests.support.deployments.fake_backend import token_id
from tests.support.deployments.replica_server import build, chat, completion, in_memory


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
    encode = answer_json.encode

    def counted(value: Any) -> str:
        nonlocal encoded
        encoded += 1
        return encode(value)

    for module in (answer_json, chat_renderer, completion_renderer):
        monkeypatch.setattr(module, "encode", counted)
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
                headers={ENVELOPE_HEADER: Envelope.seal().for_attempt("", log).header()},
            )
            assert "data: [DONE]" in response.text
            counts.append(encoded)
    assert counts[1] < counts[0] / 10


LOGPROBS = [
    TokenLogprob(number, piece.decode(errors="replace"), piece, -0.5)
    for number, piece in enumerate(["é".encode()[:1], "é".encode()[1:], b" a", "🍎".encode(), b"!"])
]


def merged(deltas: list[Delta]) -> Delta:
    return replace(
        deltas[-1],
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(one for delta in deltas for one in delta.logprobs),
        replayed=True,
    )


@pytest.mark.parametrize("num_replayed", range(len(LOGPROBS) + 1))
@pytest.mark.parametrize(
    "request_of",
    [
        lambda: ChatCompletionRequest.model_validate(chat(logprobs=True)),
        lambda: CompletionRequest.model_validate(completion(logprobs=0)),
        lambda: CompletionRequest.model_validate(completion()),
        lambda: ChatCompletionRequest.model_validate(chat(logprobs=True, **TOLD)),
        lambda: CompletionRequest.model_validate(completion(**TOLD)),
        lambda: CompletionRequest.model_validate(completion(echo=True, logprobs=2)),
    ],
)
def test_what_follows_a_replay_is_what_would_have_followed(
    request_of: Any, num_replayed: int
) -> None:
    deltas = [Delta(0, one.text, (one.token_id,), 3, 0, (one,)) for one in LOGPROBS]
    request, envelope = request_of(), Envelope("id", 1, 2)
    prompts = Prompts(request)
    prompts.hear(0, Prefill(0, 2, prompt_token_ids=(8, 9), prompt_text="so"))
    whole, rest = (
        renderer_for(ParsedRequest(request, request), envelope, prompts=prompts),
        renderer_for(ParsedRequest(request, request), envelope, prompts=prompts),
    )
    expected = [whole.chunks(0, delta) for delta in deltas]
    if num_replayed:
        rest.replay(0, merged(deltas[:num_replayed]))
    assert [rest.chunks(0, delta) for delta in deltas[num_replayed:]] == expected[num_replayed:]
