"""What the benchmark of a cluster counts as a failure, and as a difference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cluster.outcome import Outcome
from tests.support.cluster.requests import Request, requests
from tests.support.cluster.streams import Said, Stream

REQUEST = Request("/v1/completions", {})


def event(**choice: Any) -> str:
    whole = {"index": 0, "text": "", "logprobs": None, "finish_reason": None} | choice
    return "data: " + json.dumps({"choices": [whole]})


def a_stream(*lines: str) -> Stream:
    stream = Stream(0, REQUEST)
    for line in lines:
        stream.take(line)
        stream.take("")
    return stream


def test_requests_are_the_same_each_time_and_of_all_sorts() -> None:
    asked = requests(200)
    assert asked == requests(200)
    assert sum(one.body["temperature"] == 0 for one in asked) == 100
    seeded = {"/v1/chat/completions", "/v1/completions"}
    for greedy in (True, False):
        ours = [one for one in asked if (one.body["temperature"] == 0) == greedy]
        others = {"/v1/responses", "/v1/messages"} if greedy else set()
        assert {one.path for one in ours} == seeded | others
        assert {"logprobs" in one.body for one in ours} == {True, False}
        assert {"response_format" in one.body for one in ours} == {True, False}


def a_json_stream(path: str, *events: dict[str, object]) -> Stream:
    stream = Stream(number=0, request=Request(path, {"stream": True}))
    for one in events:
        stream.take(f"data: {json.dumps(one)}")
        stream.take("")
    return stream


def test_what_the_other_two_apis_say() -> None:
    usage = {"input_tokens": 3, "output_tokens": 2}
    responses = a_json_stream(
        "/v1/responses",
        {"type": "response.output_text.delta", "delta": "an "},
        {"type": "response.output_text.delta", "delta": "apple"},
        {
            "type": "response.completed",
            "response": {"status": "completed", "usage": usage, "error": None},
        },
    )
    assert not responses.done
    responses.take("data: [DONE]")
    responses.take("")
    messages = a_json_stream(
        "/v1/messages",
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "an "}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "apple"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    )
    assert responses.done
    assert messages.done
    assert responses.said == Said("an apple", (), ("completed",), 3, 2)
    assert messages.said == Said("an apple", (), ("end_turn",), 3, 2)


def test_what_a_stream_says() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    stream = a_stream(
        event(text="an "),
        ": keep-alive",
        event(text="apple", finish_reason="length", logprobs={"tokens": ["apple"]}),
        "data: " + json.dumps({"choices": [], "usage": usage}),
    )
    assert not stream.done
    stream.take("data: [DONE]")
    assert not stream.done
    stream.take("")
    assert stream.done
    said = stream.said
    assert (said.text, said.tokens, said.finish_reasons) == ("an apple", ("apple",), ("length",))
    assert (said.prompt_tokens, said.completion_tokens) == (3, 2)
    assert len(stream.token_times) == 2


@pytest.mark.parametrize(
    "lines",
    [
        ['data: {"error": {"message": "lost"}}'],
        ["data: [DONE]", event(text="more")],
        ["data: [DONE]", "data: [DONE]"],
        ["data: {"],
    ],
)
def test_what_no_stream_should_hold(lines: list[str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        a_stream(*lines)


def test_only_whole_streams_can_differ() -> None:
    whole = a_stream(event(text="an apple"), "data: [DONE]")
    broken = a_stream(event(text="an"))
    broken.failure = "the stream ended before it was done"
    outcome = Outcome([whole, broken], happened_at=0.0, recovered_s=1.0)
    assert outcome.failures == ["0: the stream ended before it was done"]
    assert Outcome([a_stream(event(text="an"))], 0.0, 1.0).failures == ["0: it has no end"]
    assert outcome.differences([whole.said]) == []
    pear = a_stream(event(text="a pear")).said
    assert len(outcome.differences([pear])) == 1
    assert outcome.differences([pear], [whole.said]) == []


def test_waits_are_of_streams_that_met_the_event() -> None:
    before, met, later = (Stream(number, REQUEST) for number in range(3))
    before.token_times = [1.0, 2.0]
    met.token_times = [1.0, 4.0, 12.0, 13.0]
    later.token_times = [30.0, 31.0]
    outcome = Outcome([before, met, later], happened_at=5.0, recovered_s=9.0)
    assert outcome.next_token_s == 7.0
    assert outcome.longest_silence_s == 8.0
