"""Anthropic's Messages API, through a gateway to a replica, as its own package reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic, NotFoundError
from anthropic.types import ModelInfo
from pydantic import BaseModel

from deployments.backend import ChatPrompt
from deployments.gateway.routing import affinity_of
from deployments.protocol import parse_request
from tests.support.deployments.failover_cases import Cut, places
from tests.support.deployments.gateway_harness import (
    fake_replica,
    gateway,
    replica_app,
    replica_at,
    serving,
)
from tests.support.deployments.messages_api import (
    TOOLS,
    body,
    check_order,
    checked_events,
    checked_message,
)
from tests.support.deployments.scripted_backend import ANSWER, Scripted

PATH = "/v1/messages"
CLAUDE_CODE = Path(__file__).parent / "recorded" / "claude_code.json"


async def told(backend: Scripted, **fields: Any) -> dict[str, Any]:
    """The whole message."""
    async with fake_replica(backend) as one, gateway([one]) as running:
        response = await running.client.post(PATH, json=body(**fields))
        assert response.status_code == 200, response.text
        return checked_message(response.json())


async def streamed(backend: Scripted, **fields: Any) -> list[dict[str, Any]]:
    async with fake_replica(backend) as one, gateway([one]) as running:
        response = await running.client.post(PATH, json=body(stream=True, **fields))
        assert response.status_code == 200, response.text
        events = checked_events(response.text)
        check_order(events)
        return events


async def prompt_of(**fields: Any) -> ChatPrompt:
    backend = Scripted("ok")
    await told(backend, **fields)
    (request,) = backend.asked
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt


async def test_the_anthropic_client_reads_the_same_streamed_and_whole() -> None:
    backend = Scripted(ANSWER)
    backend.num_cached_tokens = 3
    asked: Any = body(tools=TOOLS)
    async with fake_replica(backend) as one, gateway([one], keys=["good"]) as running:
        client = AsyncAnthropic(base_url=running.url, api_key="good", max_retries=0)
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            same = await stream.get_final_message()
        beta = await client.beta.messages.create(**asked, betas=["interleaved-thinking-2025-05-14"])
        await client.close()
    content = [block.to_dict() for block in whole.content]
    thinking, text, weather, time = content
    assert thinking.pop("signature") == whole.id.removeprefix("msg_")
    assert thinking == {"type": "thinking", "thinking": "Where?"}
    assert text == {"type": "text", "text": "Let me see."}
    assert str(weather.pop("id")).startswith("toolu_")
    assert weather == {"type": "tool_use", "name": "weather", "input": {"city": "Köln <b>"}}
    assert (time["name"], time["input"]) == ("time", {})
    assert (whole.model, whole.role, whole.type) == ("demo", "assistant", "message")
    assert (whole.stop_reason, whole.stop_sequence) == ("tool_use", None)
    assert whole._request_id
    assert whole.usage.to_dict() == {
        "input_tokens": 2,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "output_tokens": len(ANSWER),
        "output_tokens_details": {"thinking_tokens": 8},
    }
    for other in (same, beta):
        assert other.usage.to_dict() == whole.usage.to_dict()
        assert (other.stop_reason, other.stop_sequence) == (whole.stop_reason, None)
        assert [_without_ids(block) for block in other.content] == [
            _without_ids(block) for block in whole.content
        ]


def _without_ids(block: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in block.to_dict().items()
        if name not in ("id", "signature") and value is not None
    }


async def test_each_event_is_one_of_the_packages() -> None:
    events = await streamed(Scripted(ANSWER), tools=TOOLS)
    start, _, *blocks, end, _ = events
    assert start["message"]["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    begun = [one["content_block"] for one in blocks if one["type"] == "content_block_start"]
    for block in begun:
        block.pop("id", None)
    assert begun == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "name": "weather", "input": {}},
        {"type": "tool_use", "name": "time", "input": {}},
    ]
    assert blocks[-1] == {"type": "content_block_stop", "index": 3}
    signed = [one for one in blocks if one.get("delta", {}).get("type") == "signature_delta"]
    assert [one["index"] for one in signed] == [0]
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == len(ANSWER)
    assert end["usage"]["output_tokens_details"] == {"thinking_tokens": 8}


async def test_a_text_alone_and_no_text() -> None:
    message = await told(Scripted("Hello."))
    assert message["content"] == [{"type": "text", "text": "Hello."}]
    assert message["stop_reason"] == "end_turn"
    nothing = await streamed(Scripted("<think>\n</think>"))
    assert [event["type"] for event in nothing[2:-2]] == []


@pytest.mark.parametrize(
    ("answer", "finish_reason", "stop", "max_tokens", "reason"),
    [
        ("Hi", "stop", None, 9, "end_turn"),
        ("Hi", "stop", "###", 9, "stop_sequence"),
        ("Hi", "length", None, 2, "max_tokens"),
        ("Hi", "length", None, 9, "model_context_window_exceeded"),
        (ANSWER, "stop", None, 999, "tool_use"),
        (ANSWER, "stop", "###", 999, "stop_sequence"),
        (ANSWER[:-30], "length", None, len(ANSWER) - 30, "max_tokens"),
    ],
)
async def test_why_it_has_ended(
    answer: str, finish_reason: Any, stop: str | None, max_tokens: int, reason: str
) -> None:
    backend = Scripted(answer)
    backend.finish_reason, backend.stop_string = finish_reason, stop
    fields = {"max_tokens": max_tokens, "tools": TOOLS, "stop_sequences": ["x", "###"]}
    message = await told(backend, **fields)
    why = {"stop_reason": reason, "stop_sequence": stop}
    assert {name: message[name] for name in why} == why
    assert (await streamed(backend, **fields))[-2]["delta"] == why
    assert backend.asked[0].sampling.stop == ("x", "###")
    assert backend.asked[0].sampling.max_tokens == max_tokens


async def test_a_call_that_is_cut_short_has_what_there_is_of_its_input() -> None:
    cut = ANSWER[: ANSWER.index("ln <b>")]
    backend = Scripted(cut)
    backend.finish_reason = "length"
    message = await told(backend, tools=TOOLS)
    pieces = [
        event["delta"]["partial_json"]
        for event in await streamed(backend, tools=TOOLS)
        if event.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert message["content"][-1]["name"] == "weather"
    assert isinstance(message["content"][-1]["input"], dict)
    assert '{"city"' in "".join(pieces)


async def test_thoughts_may_be_left_out() -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    message = await told(Scripted(ANSWER), thinking=thinking)
    assert message["content"][0]["thinking"] == ""
    assert message["content"][0]["signature"]
    events = await streamed(Scripted(ANSWER), thinking=thinking)
    of_thought = [event for event in events if event.get("index") == 0]
    assert [event["type"] for event in of_thought] == [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    ]


async def test_a_thought_that_was_left_out_comes_back_in_its_signature() -> None:
    """The prompt of a later turn is the same, however the thought was shown."""
    for is_streamed in (False, True):
        prompts = []
        for display in ("summarized", "omitted"):
            asked: Any = body(thinking={"type": "adaptive", "display": display})
            async with fake_replica(Scripted(ANSWER)) as one, gateway([one]) as running:
                client = AsyncAnthropic(base_url=running.url, api_key="any", max_retries=0)
                async with client:
                    if is_streamed:
                        async with client.messages.stream(**asked) as stream:
                            answer = await stream.get_final_message()
                    else:
                        answer = await client.messages.create(**asked)
            content = [block.to_dict() for block in answer.content[:2]]
            assert content[0]["thinking"] == ("" if display == "omitted" else "Where?")
            said = {"role": "assistant", "content": content}
            turns = [*asked["messages"], said, {"role": "user", "content": "Go."}]
            prompts.append((await prompt_of(messages=turns)).messages)
        assert prompts[0] == prompts[1]
        assert prompts[0][1]["reasoning_content"] == "Where?"


async def test_claude_code_is_answered() -> None:
    """After it read an image and searched for a tool."""
    backend = Scripted(ANSWER)
    asked = json.loads(CLAUDE_CODE.read_text())
    async with fake_replica(backend) as one, gateway([one]) as running:
        response = await running.client.post(PATH, json=asked | {"model": "demo", "stream": False})
    assert response.status_code == 200, response.text
    assert response.headers["x-pomona-dropped"] == "image"
    prompt = backend.asked[0].prompt
    told = [(message["role"], message["content"]) for message in prompt.messages]
    before = ["system", "user", "system"]
    assert [role for role, _ in told] == [*before, *["assistant", "tool"] * 8]
    assert sum("image left out" in str(content) for _, content in told) == 1
    names = [tool["function"]["name"] for tool in prompt.tools]
    assert {"Monitor", "Read", "ToolSearch"} < set(names)
    assert "DeferredToolPlaceholder" not in names


OMITTED = {"type": "adaptive", "display": "omitted"}
LONG_THOUGHT = ANSWER.replace("Where?", "Where? " * 20)


async def test_of_thoughts_that_are_left_out_their_tokens_are_told_as_they_come() -> None:
    events = await streamed(Scripted(LONG_THOUGHT), thinking=OMITTED)
    deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
    told = [one for one in deltas if one["type"] == "thinking_delta"]
    assert [(one["thinking"], one["estimated_tokens"]) for one in told] == [("", 32)] * 4
    assert 4 * 32 <= events[-2]["usage"]["output_tokens_details"]["thinking_tokens"] < 5 * 32
    shown = await streamed(Scripted(LONG_THOUGHT))
    assert not [one for one in shown if "estimated_tokens" in one.get("delta", {})]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
LEFT_OUT = "[image left out: this model reads text]"
DOCUMENT = {
    "type": "document",
    "title": "Title",
    "source": {"type": "text", "media_type": "text/plain", "data": "Please."},
}


async def test_what_is_told_to_the_model() -> None:
    prompt = await prompt_of(
        system=[{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be brief."}],
        messages=[
            {"role": "user", "content": "One."},
            {"role": "system", "content": "It is late."},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
                    {"type": "redacted_thinking", "data": "xyz"},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "toolu_1", "name": "time", "input": '{"zone": "ü'},
                    {"type": "tool_use", "id": "toolu_2", "name": "time", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "12:00"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_2",
                        "content": [*({"type": "text", "text": one} for one in "ab"), IMAGE],
                        "is_error": True,
                    },
                    {"type": "tool_result", "tool_use_id": "toolu_3", "is_error": True},
                    {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}},
                ],
            },
            {"role": "user", "content": [DOCUMENT]},
        ],
        tools=[*TOOLS, {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}],
    )
    calls = [
        {"id": name, "type": "function", "function": {"name": "time", "arguments": arguments}}
        for name, arguments in (("toolu_1", {"zone": "ü"}), ("toolu_2", {}))
    ]
    assert list(prompt.messages) == [
        {"role": "system", "content": "Be kind.\nBe brief."},
        {"role": "user", "content": "One."},
        {"role": "system", "content": "It is late."},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": calls,
            "reasoning_content": "Hm.",
        },
        {"role": "tool", "content": "12:00", "tool_call_id": "toolu_1"},
        {"role": "tool", "content": f"a\nb\n{LEFT_OUT}", "tool_call_id": "toolu_2"},
        {"role": "tool", "content": "The tool failed.", "tool_call_id": "toolu_3"},
        {"role": "user", "content": "Go on.\nTitle\nPlease."},
    ]
    assert [tool["function"]["name"] for tool in prompt.tools] == ["weather", "time"]
    assert prompt.tools[0]["function"]["parameters"] == TOOLS[0]["input_schema"]


async def test_an_answer_goes_on_where_its_beginning_was_sent() -> None:
    begun = {"role": "assistant", "content": "The answer is"}
    prompt = await prompt_of(messages=[*body()["messages"], begun])
    assert prompt.messages[-1] == begun
    assert prompt.continues_final_message


async def test_nothing_but_the_prompt_is_asked_for() -> None:
    backend = Scripted("ok")
    await told(backend, max_tokens=0)
    assert backend.asked[0].sampling.max_tokens == 0


async def test_tools_of_a_vendor_are_dropped_by_name() -> None:
    tools = [*TOOLS, {"type": "web_search_20250305", "name": "web_search"}]
    async with fake_replica(Scripted("ok")) as one, gateway([one]) as running:
        response = await running.client.post(PATH, json=body(tools=tools))
    assert response.headers["x-pomona-dropped"] == "web_search_20250305"


@pytest.mark.parametrize(
    ("choice", "has_tools", "may_say_nothing"),
    [
        ({"type": "auto"}, True, True),
        ({"type": "any"}, True, False),
        ({"type": "any", "disable_parallel_tool_use": True}, True, False),
        ({"type": "tool", "name": "time"}, True, False),
        ({"type": "none"}, False, True),
    ],
)
async def test_which_tools_may_be_called(
    choice: dict[str, Any], has_tools: bool, may_say_nothing: bool
) -> None:
    backend = Scripted("ok")
    await told(backend, tools=TOOLS, tool_choice=choice)
    (request,) = backend.asked
    assert isinstance(request.prompt, ChatPrompt)
    assert bool(request.prompt.tools) == has_tools
    grammar = request.sampling.grammar
    assert (grammar is not None) == has_tools
    if grammar is not None:
        start, _, _ = grammar.text.partition("\n")
        assert ("FREE?" in start) == may_say_nothing
        assert ("body)*" in start) == ("disable_parallel_tool_use" not in choice)
        assert ('\\"weather\\"' in grammar.text) == ("name" not in choice)


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({}, {}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "enabled", "budget_tokens": 77}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
            {"enable_thinking": False},
        ),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            {"enable_thinking": True, "reasoning_effort": "high"},
        ),
        (
            {"output_config": {"effort": "low"}},
            {"enable_thinking": True, "reasoning_effort": "low"},
        ),
    ],
)
async def test_how_much_it_thinks(fields: dict[str, Any], arguments: dict[str, Any]) -> None:
    variables: dict[str, frozenset[str]] = {"enable_thinking": frozenset()}
    if "reasoning_effort" in arguments:
        variables["reasoning_effort"] = frozenset({"low", "medium", "high"})
    backend = Scripted("ok", template_variables=variables)
    await told(backend, **fields)
    prompt = backend.asked[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_arguments == arguments
    thoughts = backend.asked[0].sampling.thoughts
    assert thoughts is not None
    assert thoughts.budget == fields.get("thinking", {}).get("budget_tokens")


async def test_a_form_that_is_asked_for() -> None:
    backend = Scripted("{}")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await told(backend, output_config={"format": {"type": "json_schema", "schema": schema}})
    grammar = backend.asked[0].sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.text) == schema


def affinity(system: list[str]) -> Any:
    blocks = [{"type": "text", "text": text} for text in system]
    asked = body(system=blocks, messages=[{"role": "user", "content": "word " * 200}])
    return affinity_of(parse_request(PATH, json.dumps(asked).encode()).form)


async def test_the_billing_line_is_no_part_of_the_prompt() -> None:
    lines = [f"x-anthropic-billing-header: cc_version=2.1.197.{n}; cch=ab{n};" for n in (123, 667)]
    assert affinity([lines[0], "Be kind."]) == affinity([lines[1], "Be kind."])
    assert affinity([lines[0], "Be kind."]) != affinity([lines[0], "Be brief."])
    only = [{"type": "text", "text": lines[0]}]
    prompt = await prompt_of(system=only)
    assert [message["role"] for message in prompt.messages] == ["user"]


async def test_what_marks_the_cache_is_no_part_of_the_prompt() -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    marked = await prompt_of(
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hi."} | mark]}],
        system=[{"type": "text", "text": "Be kind."} | mark],
        tools=[TOOLS[0] | mark],
        **mark,
    )
    plain = await prompt_of(
        messages=[{"role": "user", "content": "Hi."}], system="Be kind.", tools=[TOOLS[0]]
    )
    assert marked == plain


async def test_the_fields_that_change_nothing() -> None:
    message = await told(
        Scripted("ok"),
        metadata={"user_id": "user_1_session_2"},
        service_tier="auto",
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        speed="standard",
        mcp_servers=[],
        temperature=1.0,
        top_p=0.9,
        top_k=5,
        tools=[TOOLS[0] | {"defer_loading": False, "eager_input_streaming": True}],
    )
    assert message["stop_reason"] == "end_turn"


async def test_tokens_are_counted_as_they_would_run() -> None:
    backend = Scripted("ok")
    asked: Any = body(max_tokens=None, tools=TOOLS, system="Be kind.")
    async with fake_replica(backend) as one, gateway([one]) as running:
        client = AsyncAnthropic(base_url=running.url, api_key="any", max_retries=0)
        counted = await client.messages.count_tokens(**asked)
        await client.messages.create(**asked, max_tokens=5)
        await client.close()
        raw = await running.client.post(f"{PATH}/count_tokens", json=asked)
    assert raw.json() == {"input_tokens": counted.input_tokens}
    assert backend.requests[0].prompt == backend.asked[0].prompt
    # The fake's tokens are the words of the last message.
    assert counted.input_tokens == 5


def extras(model: BaseModel) -> dict[str, Any]:
    """All that its type does not know, at any depth."""
    inner = (value for _, value in model if isinstance(value, BaseModel))
    return dict(model.model_extra or {}, **{k: v for one in inner for k, v in extras(one).items()})


async def test_a_model_that_thinks_is_told_as_one() -> None:
    async with fake_replica() as one, gateway([replace(one, thinks=True)]) as running:
        told = await running.client.get("/v1/models/demo", headers={"anthropic-version": "1"})
    capabilities = ModelInfo.model_validate(told.json()).capabilities
    assert capabilities is not None
    assert capabilities.thinking.supported
    assert capabilities.thinking.types.enabled.supported
    assert capabilities.effort.low.supported


async def test_the_models_are_told_as_the_package_reads_them() -> None:
    async with fake_replica() as one, gateway([one], keys=["good"]) as running:
        client = AsyncAnthropic(base_url=running.url, api_key="good", max_retries=0)
        page = await client.models.list()
        (model,) = page.data
        same = await client.models.retrieve("demo")
        with pytest.raises(NotFoundError) as caught:
            await client.models.retrieve("other")
        await client.close()
        openais = await running.client.get("/v1/models", headers={"Authorization": "Bearer good"})
    assert model == same
    assert (model.id, model.type) == ("demo", "model")
    assert (model.max_input_tokens, model.max_tokens) == (4096, 4096)
    assert model.created_at.year > 2024
    assert not model.model_extra
    assert model.capabilities is not None
    assert not extras(model.capabilities)
    assert model.capabilities.structured_outputs.supported
    assert model.capabilities.thinking.types.adaptive.supported
    assert not model.capabilities.thinking.supported
    assert not page.has_next_page()
    assert caught.value.type == "not_found_error"
    assert openais.json()["object"] == "list"


async def test_somebody_is_there() -> None:
    async with gateway([], keys=["good"]) as running:
        response = await running.client.head("/")
    assert response.status_code == 200


@pytest.mark.parametrize(("answer", "thinking"), [(ANSWER, None), (LONG_THOUGHT, OMITTED)])
async def test_a_stream_goes_on_elsewhere_wherever_it_was_cut(
    answer: str, thinking: dict[str, Any] | None
) -> None:
    """In the middle of a thought, of a text and of a call."""
    first, second = Scripted(answer), Scripted(answer)
    cut = Cut(await replica_app(first))
    async with (
        serving(cut) as url,
        fake_replica(second, name="b") as other,
        gateway([]) as running,
    ):

        async def ask(number: int) -> list[dict[str, Any]]:
            dying = replica_at(url, name=f"a-{number}")
            running.directory.replace([dying, replace(other, replica_id=f"b-{number}")])
            asked = body(stream=True, tools=TOOLS, thinking=thinking)
            response = await running.client.post(PATH, json=asked)
            events = checked_events(response.text)
            check_order(events)
            return told_by(events)

        whole = await ask(0)
        cuts = [*places(cut.writes)]
        for number, place in enumerate(cuts[:: max(1, len(cuts) // 40)], 1):
            cut.after_bytes = place
            assert await ask(number) == whole
    assert len(second.asked) > 30


def told_by(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what is another answer's own."""
    answer_id = events[0]["message"]["id"].removeprefix("msg_")
    calls = [event.get("content_block", {}).get("id") for event in events]
    text = json.dumps(events).replace(answer_id, "ID")
    for number, call in enumerate(filter(None, calls)):
        text = text.replace(call, f"CALL-{number}")
    loaded: list[dict[str, Any]] = json.loads(text)
    return loaded


async def test_a_whole_message_goes_on_elsewhere_too() -> None:
    first, second = Scripted(ANSWER), Scripted(ANSWER)
    async with (
        fake_replica(first, name="a") as one,
        fake_replica(second, name="b") as two,
        gateway([one, two]) as running,
    ):
        first.stops_after = len(ANSWER) // 2
        response = await running.client.post(PATH, json=body(tools=TOOLS))
        message = checked_message(response.json())
    assert second.asked[0].resume
    assert [block["type"] for block in message["content"]] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]


async def test_a_stream_may_be_resumed_by_its_client() -> None:
    headers = {"X-Pomona-Resumable": "1"}
    asked = body(stream=True, tools=TOOLS)
    async with fake_replica(Scripted(ANSWER)) as one, gateway([one]) as running:
        response = await running.client.post(PATH, json=asked, headers=headers)
        parts = response.text.removesuffix("\n\n").split("\n\n")
        *with_ids, last = parts
        assert last == 'event: message_stop\ndata: {"type":"message_stop"}'
        for place in range(0, len(with_ids), 9):
            event_id = with_ids[place].rpartition("\nid: ")[2]
            rest = await running.client.post(
                PATH, json=asked, headers=headers | {"Last-Event-ID": event_id}
            )
            told = [p for p in rest.text.removesuffix("\n\n").split("\n\n") if p[0] != ":"]
            assert [_data(p) for p in told] == [_data(p) for p in parts[place + 1 :]]


def _data(event: str) -> str:
    return event.partition("\nid: ")[0]
