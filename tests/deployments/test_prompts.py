"""What is told of prompts, as it is heard piece by piece."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.backend import InvalidRequestError, Prefill, TokenLogprob
from deployments.protocol import ChatCompletionRequest, CompletionRequest
from deployments.replica.prompts import MOST_LOGPROBS, Prompts
from tests.support.deployments.answers import error_of
from tests.support.deployments.replica_server import MODEL, build, completion, in_memory
from tests.support.fuzzing import fuzz


def asked(**fields: Any) -> CompletionRequest:
    return CompletionRequest.parse({"model": "m", "prompt": "so it is", **fields})


def tokens_of(*texts: str) -> list[TokenLogprob]:
    other = TokenLogprob(9, "x", b"x", -0.5)
    return [
        TokenLogprob(i, text, text.encode(), -1.0 * i, (other,), rank=i)
        for i, text in enumerate(texts)
    ]


@fuzz(50)
@given(st.sets(st.integers(1, 3)))
def test_pieces_add_up(cuts: set[int]) -> None:
    tokens = tokens_of("<s>", "so", " it", " is")
    prompts = Prompts(asked(echo=True, logprobs=1, prompt_logprobs=1))
    prompts.hear(0, Prefill(0, 4, prompt_text="<s>so it is"))
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), 4], strict=True):
        prompts.hear(0, Prefill(end, 4, logprobs=tuple(tokens[start:end])))
    arrays = {
        name: json.loads(b"[" + b",".join(pieces) + b"]")
        for name, pieces in prompts.arrays(0).items()
    }
    assert arrays == {
        "tokens": ["<s>", "so", " it", " is"],
        "token_logprobs": [None, -1.0, -2.0, -3.0],
        "top_logprobs": [None, *({"x": -0.5, t.text: t.logprob} for t in tokens[1:])],
        # What the tokenizer put before the prompt takes no room in it.
        "text_offset": [0, 0, 2, 5],
    }
    told = json.loads(prompts.logprobs(0).removeprefix(',"prompt_logprobs":'))
    assert [one and [*one] for one in told] == [None, ["1", "9"], ["2", "9"], ["3", "9"]]


def test_texts_are_those_that_were_sent_unless_they_were_cut() -> None:
    heard = Prefill(0, 3, prompt_text="<s>so it is")
    for fields, text in (
        ({}, "so it is"),
        ({"truncate_prompt_tokens": 2}, "<s>so it is"),
        ({"prompt": [1, 2, 3]}, "<s>so it is"),
    ):
        prompts = Prompts(asked(echo=True, **fields))
        prompts.hear(0, heard)
        assert prompts.text(0) == text


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"echo": True, "logprobs": 3}, "logprobs"), ({"prompt_logprobs": 3}, "prompt_logprobs")],
)
def test_so_much_is_told_at_most(fields: dict[str, Any], param: str) -> None:
    most = MOST_LOGPROBS // 4 // 2
    for sizes in ([most], [most // 2, most - most // 2]):
        prompts = Prompts(asked(prompt=["a"] * 9, n=2, **fields))
        for number, size in enumerate(sizes):
            prompts.hear(number, Prefill(0, size))
        with pytest.raises(InvalidRequestError) as caught:
            prompts.hear(8, Prefill(0, 1))
        assert caught.value.param == param
    plain = Prompts(asked(n=2))
    plain.hear(0, Prefill(0, 10 * MOST_LOGPROBS))


async def test_too_much_is_refused_before_it_is_computed() -> None:
    app, backend = await build(max_model_len=9000)
    body = completion("w " * 8000, n=16, echo=True, logprobs=20)
    async with in_memory(app) as client:
        for stream in (False, True):
            response = await client.post("/v1/completions", json=body | {"stream": stream})
            assert response.status_code == 400
            assert error_of(response)["param"] == "logprobs"
    await backend.live.reaches(0)
    assert backend.stats().generation_tokens == 0


async def test_a_header_names_so_many_kinds_of_tools() -> None:
    app, _ = await build()
    tools = [{"type": f"kind_{number}"} for number in range(100)]
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "tools": tools}
    assert len(ChatCompletionRequest.parse(chat).dropped_tools) == 100
    async with in_memory(app) as client:
        response = await client.post("/v1/chat/completions", json=chat)
    assert response.status_code == 200
    assert response.headers["X-Pomona-Dropped"].split(", ") == [
        f"kind_{number}" for number in range(32)
    ]
