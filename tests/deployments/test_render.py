"""Whole answers, put together from what each delta added."""

from __future__ import annotations

import json
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.backend import Delta, TokenLogprob
from deployments.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationForm,
    ParsedRequest,
)
from deployments.replica.fold import Usage
from deployments.replica.render import Renderer, renderer_for
from deployments.wire.envelope import Envelope
from tests.support.fuzzing import fuzz

WORDS = ("one", " two", '"', "\\", "é", "\u2028", "")
ENVELOPE = Envelope.seal()
PARTS_OF_A_CHARACTER = "🍎".encode()


def chat(**fields: Any) -> ChatCompletionRequest:
    messages = [{"role": "user", "content": "x"}]
    return ChatCompletionRequest.parse({"model": "m", "messages": messages, **fields})


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.parse({"model": "m", "prompt": "x", **fields})


def token(text: str, utf8: bytes, num_top: int) -> TokenLogprob:
    top = tuple(TokenLogprob(i, f"{text}{i}", utf8 + b"%d" % i, -1.0 - i) for i in range(num_top))
    return TokenLogprob(7, text, utf8, float("-inf") if text == "" else -0.5, top)


tokens = st.one_of(
    st.sampled_from(WORDS).map(lambda word: (word, word.encode())),
    st.sampled_from(PARTS_OF_A_CHARACTER).map(lambda byte: ("\ufffd", bytes([byte]))),
)


@fuzz(100)
@given(st.lists(st.tuples(st.integers(0, 2), tokens), max_size=12), st.sampled_from([0, 2]))
@pytest.mark.parametrize("has_logprobs", [True, False])
def test_a_whole_answer_is_what_its_stream_adds_up_to(
    has_logprobs: bool, said: list[tuple[int, tuple[str, bytes]]], num_top: int
) -> None:
    deltas = [
        (choice, delta(text, (token(text, utf8, num_top),) if has_logprobs else ()))
        for choice, (text, utf8) in said
    ]
    deltas += [(choice, delta("", (), finish_reason="stop")) for choice in (2, 0, 1)]
    for request in (
        chat(n=3, logprobs=has_logprobs, top_logprobs=num_top if has_logprobs else 0),
        completion(n=3, logprobs=num_top if has_logprobs else None),
    ):
        streaming, whole = (
            renderer_for(ParsedRequest(request, request), ENVELOPE),
            renderer_for(ParsedRequest(request, request), ENVELOPE),
        )
        folded: list[dict[str, Any]] = [{} for _ in range(3)]
        for choice, one in deltas:
            whole.add(choice, one)
            for event in streaming.chunks(choice, one).decode().split("\n\n")[:-1]:
                [chunk] = json.loads(event.removeprefix("data: "))["choices"]
                fold(folded[choice], chunk)
        body = json.loads(whole.whole(Usage(3)))
        assert [one.pop("index") for one in body["choices"]] == [0, 1, 2]
        for choice, one in enumerate(body["choices"]):
            assert simplified(one) == folded[choice]
            assert (one["logprobs"] is not None) == has_logprobs


def delta(text: str, logprobs: tuple[TokenLogprob, ...], **fields: Any) -> Delta:
    return Delta(0, text, (7,), 5, num_cached_tokens=0, logprobs=logprobs, **fields)


def fold(choice: dict[str, Any], chunk: dict[str, Any]) -> None:
    said = chunk["delta"].get("content", "") if "delta" in chunk else chunk["text"]
    choice["text"] = choice.get("text", "") + said
    choice["finish_reason"] = chunk["finish_reason"]
    arrays = choice.setdefault("arrays", {})
    for name, values in (chunk["logprobs"] or {}).items():
        if values:
            arrays[name] = arrays.get(name, []) + values


def simplified(choice: dict[str, Any]) -> dict[str, Any]:
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    arrays = {name: values for name, values in (choice["logprobs"] or {}).items() if values}
    return {"text": text, "finish_reason": choice["finish_reason"], "arrays": arrays}


@pytest.mark.parametrize(
    "request_", [chat(logprobs=True, top_logprobs=20), completion(logprobs=20)]
)
def test_the_end_of_a_long_answer_is_no_more_work_than_that_of_a_short_one(
    request_: GenerationForm,
) -> None:
    """All other requests wait for it."""
    assert calls_at_the_end(request_, 1000) == calls_at_the_end(request_, 10)


def calls_at_the_end(request: GenerationForm, num_tokens: int) -> int:
    renderer: Renderer = renderer_for(ParsedRequest(request, request), ENVELOPE)
    for _ in range(num_tokens):
        renderer.add(0, delta(" one", (token(" one", b" one", 20),)))
    num_calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    sys.setprofile(count)
    renderer.whole(Usage(1))
    sys.setprofile(None)
    return num_calls
