"""The load generator against a scripted server: when it asks, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from typing import Any, get_args

import numpy as np
import pytest

from ops.bench.serve import (
    SERVERS,
    Api,
    Conversation,
    Load,
    Sampling,
    Server,
    Target,
    Turn,
    run_load,
)
from ops.bench.serve.answer import Answer, EventReader, Heard
from ops.bench.serve.errors import LoadError
from tests.support.ops.scripted_openai import ScriptedServer, Wrong, scripted

FAULTS: dict[Wrong, str] = {
    "cut": "the connection broke",
    "error_event": 'the stream ends with an error: {"message": "the engine is gone"}',
    "no_done": "the stream ends without [DONE]",
    "beyond_done": "an event behind the last one",
    "no_json": "not a stream of OpenAI's",
    "two_ends": "2 finish reasons, not one: ('length', 'length')",
    "no_end": "0 finish reasons, not one: ()",
    "no_usage": "no usage, which was asked for",
    "usage_too_low": "usage says 5 tokens, but 6 came",
    "usage_of_prompt": "usage says 5 prompt tokens, but 4 were sent",
    "too_short": "finish reason 'length' after 5 of 6 tokens",
    "too_long": "7 tokens, but 6 were asked for at most",
    "stops": "finish reason 'stop', though nothing but the length may end it",
    "no_ids": "no token ids, which were asked for",
    "silent": "the server was silent for too long",
    "500": 'status 500: {"error":{"message":"out of order"}}',
}


def singles(count: int, *, prompt: Any = (5, 6, 7, 8), max_tokens: int = 6) -> list[Conversation]:
    return [Conversation((Turn(prompt, max_tokens),)) for _ in range(count)]


@pytest.mark.parametrize("api", get_args(Api))
async def test_good_answers_are_what_was_sent(api: Api) -> None:
    server = ScriptedServer()
    async with scripted(server, api=api) as target:
        prompts = ["one", "two"] if api == "chat" else [(1, 2), (3, 4, 5)]
        load = Load([Conversation((Turn(prompt, 6),)) for prompt in prompts], concurrency=1)
        result = await run_load(target, load)
    assert result.faults == []
    assert (len(result.good), result.num_failed, result.num_refused) == (2, 0, 0)
    assert result.output_tokens == 12
    assert result.input_tokens == (14 if api == "chat" else 5)
    assert result.cached_tokens == 6
    by_number = sorted(result.answers, key=lambda one: one.number)
    for answer, exchange in zip(by_number, server.exchanges, strict=True):
        assert answer.token_ids == tuple(exchange.token_ids)
        assert answer.text == "".join(f" {one}" for one in exchange.token_ids)
        assert exchange.authorization == "Bearer a key"
        assert exchange.body["model"] == "m"
        assert exchange.body["temperature"] == 0
        assert exchange.body["ignore_eos"] is True
        assert exchange.body["stream_options"] == {"include_usage": True}


async def test_times_are_those_of_the_server() -> None:
    server = ScriptedServer(step_s=0.02)
    async with scripted(server) as target:
        result = await run_load(target, Load(singles(1)))
    [answer], [exchange] = result.answers, server.exchanges
    assert answer.sent <= exchange.arrived
    # Each token is read after it was sent, and before the one behind it is, as the loop is one.
    assert all(sent <= read for sent, read in zip(exchange.sent, answer.times, strict=True))
    assert answer.times[-1] <= answer.ended
    assert answer.times[-1] - answer.times[0] >= 4 * 0.02
    assert result.seconds >= answer.latency >= 6 * 0.02


@pytest.mark.parametrize("wrong", [one for one in get_args(Wrong) if one in FAULTS])
async def test_what_is_wrong_with_an_answer_is_told(wrong: Wrong) -> None:
    server = ScriptedServer(wrong=wrong, wrong_every=2)
    async with scripted(server) as target:
        load = Load(singles(4), concurrency=1, silence_s=1.0 if wrong == "silent" else 60.0)
        result = await run_load(target, load)
    assert [len(one.faults) for one in result.answers] == [0, 1, 0, 1]
    assert FAULTS[wrong] in result.faults[0]
    assert result.faults[0].startswith("conversation 1, turn 0: ")
    assert (len(result.good), result.num_failed) == (2, 2)
    # Failed ones are in no figure.
    assert result.output_tokens == 12


def test_all_that_a_server_can_do_wrong_is_tried() -> None:
    assert {*FAULTS} == {*get_args(Wrong)} - {"", "429", "other_tokens"}


async def test_refusals_are_no_faults_but_failures() -> None:
    async with scripted(ScriptedServer(wrong="429", wrong_every=2)) as target:
        result = await run_load(target, Load(singles(4), concurrency=1))
    assert result.faults == []
    assert (len(result.good), result.num_failed, result.num_refused) == (2, 2, 2)
    assert {one.retry_after for one in result.answers if one.is_refused} == {"3"}


async def test_a_server_that_is_not_there() -> None:
    result = await run_load(Target("http://127.0.0.1:1", "m"), Load(singles(1, prompt="a")))
    assert "the connection broke" in result.faults[0]


async def test_a_connection_that_was_closed_behind_an_answer_is_no_failure() -> None:
    events = "".join(
        f"data: {json.dumps(event)}\n\n"
        for event in (
            {"choices": [{"index": 0, "text": " a", "finish_reason": "length"}]},
            {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}},
        )
    )
    body = f"{events}data: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n"
    asked: list[int] = []

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As if the second request had met a connection that is closed just then."""
        for number in range(2):
            try:
                request = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            [length] = re.findall(rb"(?i)content-length: (\d+)", request)
            await reader.readexactly(int(length))
            asked.append(number)
            if number == 0:
                writer.write(f"{head}Content-Type: text/event-stream\r\n\r\n{body}".encode())
        writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        target = Target(f"http://127.0.0.1:{port}", "m", "completions", Server("anybody"))
        load = Load(singles(3, prompt="a", max_tokens=1), concurrency=1)
        result = await run_load(target, load)
    assert result.faults == []
    assert (len(result.good), result.num_failed) == (3, 0)
    assert asked == [0, 1, 0, 1, 0]


async def test_a_server_that_tells_no_ids_is_held_to_its_events() -> None:
    async with scripted(ScriptedServer(tokens_an_event=2), known_as="llama.cpp") as target:
        result = await run_load(target, Load(singles(2)))
    assert result.faults == []
    # Three events with a text are three tokens or more.
    assert {len(one.times) for one in result.answers} == {3}
    assert result.output_tokens == 12
    async with scripted(ScriptedServer("usage_too_low"), known_as="llama.cpp") as target:
        result = await run_load(target, Load(singles(1)))
    assert "usage says 5 tokens, but 6 events brought some" in " ".join(result.faults)


async def test_what_a_server_does_not_know_is_not_sent() -> None:
    server = ScriptedServer(wrong="stops")
    async with scripted(server, known_as="mlx-lm") as target:
        result = await run_load(target, Load(singles(1)))
    # It may end an answer when it likes.
    assert result.faults == []
    assert not {"ignore_eos", "return_token_ids"} & {*server.exchanges[0].body}


async def test_sampling_is_sent_as_it_is_given() -> None:
    server = ScriptedServer()
    sampling = Sampling(
        0.7, top_p=0.9, presence_penalty=1.0, seed=40, ignore_eos=False, extra={"user": "me"}
    )
    async with scripted(server) as target:
        await run_load(target, Load(singles(2), concurrency=1, sampling=sampling))
    sent = [exchange.body for exchange in server.exchanges]
    assert [body["seed"] for body in sent] == [40, 41]
    assert (sent[0]["temperature"], sent[0]["top_p"], sent[0]["user"]) == (0.7, 0.9, "me")
    assert sent[0]["presence_penalty"] == 1.0
    assert not {"ignore_eos", "top_k", "frequency_penalty", "extra"} & {*sent[0]}


async def test_a_closed_loop_has_as_many_as_it_may() -> None:
    server = ScriptedServer(step_s=0.002, waits_for=3)
    async with scripted(server) as target, asyncio.timeout(60):
        result = await run_load(target, Load(singles(12), concurrency=3))
    assert server.most_running == 3
    assert len(result.good) == 12


async def test_without_a_bound_all_come_at_once() -> None:
    server = ScriptedServer(waits_for=12)
    async with scripted(server) as target, asyncio.timeout(60):
        await run_load(target, Load(singles(12, max_tokens=2)))
    assert server.most_running == 12


async def test_an_open_loop_comes_by_the_clock_whatever_becomes_of_the_others() -> None:
    server = ScriptedServer(waits_for=20)
    load = Load(singles(20, max_tokens=1), rate=100.0)
    async with scripted(server) as target, asyncio.timeout(60):
        result = await run_load(target, load)
    due = sorted(one.due - result.start for one in result.answers)
    assert np.diff(due) == pytest.approx(np.diff(load.arrivals()))
    assert all(one.sent >= one.due for one in result.answers)
    assert result.lateness.p99 >= 0
    assert server.most_running == 20


def test_arrivals_are_a_poisson_process() -> None:
    arrivals = Load(singles(20_001), rate=4.0).arrivals()
    gaps = np.diff(arrivals)
    assert arrivals[0] == 0
    assert np.mean(gaps) == pytest.approx(1 / 4, rel=0.03)
    # Of an exponential distribution: as wide as its mean, without a memory.
    assert np.std(gaps) == pytest.approx(1 / 4, rel=0.03)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03
    assert arrivals == Load(singles(20_001), rate=4.0).arrivals()
    assert Load(singles(3)).arrivals() == [0.0, 0.0, 0.0]


async def test_the_warm_up_is_sent_before_and_not_measured() -> None:
    server = ScriptedServer()
    warm_up = singles(3, prompt=(1, 1))
    async with scripted(server) as target:
        result = await run_load(target, Load(singles(2), warm_up=warm_up))
    assert [tuple(one.body["prompt"]) for one in server.exchanges[:3]] == [(1, 1)] * 3
    assert len(result.answers) == 2
    assert result.start >= server.exchanges[2].sent[-1]


async def test_a_warm_up_that_fails_ends_it() -> None:
    async with scripted(ScriptedServer("500")) as target:
        with pytest.raises(LoadError, match="out of order"):
            await run_load(target, Load(singles(1), warm_up=singles(1)))


async def test_a_conversation_goes_on_from_its_answers() -> None:
    server = ScriptedServer()
    turns = (Turn((4, 5), 3), Turn((6,), 2), Turn((7, 8), 1))
    async with scripted(server) as target:
        result = await run_load(target, Load([Conversation(turns, (1, 2))]))
    first, second, third = server.exchanges
    assert first.body["prompt"] == [1, 2, 4, 5]
    assert second.body["prompt"] == [1, 2, 4, 5, *first.token_ids, 6]
    assert third.body["prompt"] == [*second.body["prompt"], *second.token_ids, 7, 8]
    assert result.faults == []
    assert [(one.number, one.turn) for one in result.answers] == [(0, 0), (0, 1), (0, 2)]
    assert result.input_tokens == 4 + 8 + 12


async def test_a_chat_goes_on_from_its_answers() -> None:
    server = ScriptedServer()
    conversation = Conversation((Turn("hello", 2), Turn("and", 2, pause_s=0.05)), "be brief")
    async with scripted(server, api="chat") as target:
        result = await run_load(target, Load([conversation]))
    told = "".join(f" {one}" for one in server.exchanges[0].token_ids)
    assert server.exchanges[1].body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": told},
        {"role": "user", "content": "and"},
    ]
    before, after = result.answers
    assert after.sent >= after.due == before.ended + 0.05


async def test_a_conversation_ends_with_an_answer_that_fails() -> None:
    server = ScriptedServer("no_done")
    async with scripted(server) as target:
        result = await run_load(target, Load([Conversation((Turn("a", 2), Turn("b", 2)))]))
    assert len(server.exchanges) == len(result.faults) == 1


async def test_the_same_is_answered_when_it_is_asked_again() -> None:
    async with scripted(ScriptedServer()) as target:
        result = await run_load(target, Load(singles(4), repeats=3))
    assert (result.faults, len(result.answers), len(result.repeats)) == ([], 4, 3)
    async with scripted(ScriptedServer("other_tokens")) as target:
        result = await run_load(target, Load(singles(4), repeats=2, concurrency=1))
    assert result.faults == [
        f"conversation {number}, turn 0: answered differently when asked again, from token 0 on"
        for number in (0, 1)
    ]
    # The answers that were measured are as good as before.
    assert len(result.good) == 4


@pytest.mark.parametrize(
    ("conversation", "api", "why"),
    [
        (Conversation(()), "chat", "needs a turn"),
        (Conversation((Turn((1, 2), 3),)), "chat", "chats are of texts"),
        (Conversation((Turn((1, 2), 3),), "text"), "completions", "either of texts or of token"),
        (Conversation((Turn((1,), 1), Turn((1,), 1))), "completions", "tells no token ids"),
    ],
)
async def test_what_a_target_can_not_be_given_is_refused(
    conversation: Conversation, api: Api, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        await run_load(Target("http://nowhere", "m", api), Load([conversation]))


async def test_a_load_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a conversation"):
        await run_load(Target("http://nowhere", "m"), Load([]))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_events_are_read_wherever_their_bytes_are_cut(end: str) -> None:
    data = f': a{end}{end}data: {{"a": 1}}{end}{end}event: x{end}data:[DONE]{end}{end}'.encode()
    for cuts in itertools.combinations(range(len(data)), 2):
        reader = EventReader()
        pieces = (data[: cuts[0]], data[cuts[0] : cuts[1]], data[cuts[1] :])
        assert [one for piece in pieces for one in reader.feed(piece)] == [b'{"a": 1}', b"[DONE]"]


def test_thoughts_and_calls_are_tokens_too() -> None:
    heard = Heard()
    for at, delta in enumerate(
        (
            '{"role": "assistant", "content": ""}',
            '{"reasoning_content": "hm"}',
            '{"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}',
            '{"content": "yes"}',
            "{}",
        )
    ):
        heard.hear(f'{{"choices": [{{"delta": {delta}}}]}}'.encode(), float(at))
    assert heard.times == [1.0, 2.0, 3.0]
    assert "".join(heard.text) == "yes"


async def test_a_caller_hears_of_each_answer_as_it_comes() -> None:
    heard: list[Answer] = []
    async with scripted(ScriptedServer()) as target:
        result = await run_load(
            target, Load(singles(3), warm_up=singles(1), repeats=1), on_answer=heard.append
        )
    assert tuple(heard) == result.answers


def test_every_server_that_is_known_is_one_of_openais_kind() -> None:
    assert {"pomona", "vllm", "llama.cpp", "mlx-lm", "openai"} == {*SERVERS}


async def test_many_streams_at_once() -> None:
    server = ScriptedServer(step_s=0.001)
    async with scripted(server) as target, asyncio.timeout(120):
        result = await run_load(target, Load(singles(64, max_tokens=20), concurrency=64))
    assert result.faults == []
    assert result.output_tokens == 64 * 20
