"""Tools as chats had them first: ``functions`` and ``function_call``, by OpenAI's own client."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from deployments.backend import ChatPrompt
from deployments.protocol.structured_output import MAX_GRAMMAR_CHARS
from tests.deployments.test_tool_calls import events_of
from tests.support.deployments.gateway_harness import fake_replica, gateway
from tests.support.deployments.scripted_backend import ANSWER, HERMES, Scripted, app_of

CALL = ANSWER[: ANSWER.index("</tool_call>") + len("</tool_call>")]
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
FUNCTIONS = [WEATHER, {"name": "time"}]
TOOLS = [{"type": "function", "function": one} for one in FUNCTIONS]
USER = {"role": "user", "content": "How is it in Köln?"}
ASKED: dict[str, Any] = {"model": "demo", "messages": [USER], "functions": FUNCTIONS}


async def test_a_call_comes_as_function_call_and_goes_back_as_it_came() -> None:
    backend = Scripted(CALL)
    async with fake_replica(backend) as one, gateway([one]) as running:
        client = AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0)
        whole = await client.chat.completions.create(**ASKED, n=2)
        async with client.chat.completions.stream(**ASKED, n=2) as stream:
            streamed = await stream.get_final_completion()
        for choice in (*whole.choices, *streamed.choices):
            assert choice.finish_reason == "function_call"
            message = choice.message
            assert (message.content, message.tool_calls) == ("Let me see.", None)
            assert message.function_call is not None
            assert message.function_call.name == "weather"
            assert json.loads(message.function_call.arguments) == {"city": "Köln <b>"}

        answer = whole.choices[0].message.model_dump()
        result = {"role": "function", "name": "weather", "content": "Rain."}
        backend.answer = "It rains."
        last = await client.chat.completions.create(**ASKED | {"messages": [USER, answer, result]})
        await client.close()
    assert (last.choices[0].message.content, last.choices[0].finish_reason) == ("It rains.", "stop")
    assert last.choices[0].message.function_call is None
    prompt = backend.asked[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert [one["function"]["name"] for one in prompt.tools] == ["weather", "time"]
    _, called, told = prompt.messages
    (call,) = called["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": {"city": "Köln <b>"}}
    assert told == {
        "role": "tool",
        "name": "weather",
        "content": "Rain.",
        "tool_call_id": call["id"],
    }


async def test_a_call_goes_on_elsewhere_wherever_it_was_cut() -> None:
    def added(choices: list[Any]) -> dict[str, str]:
        calls = [one["delta"].get("function_call", {}) for one in choices]
        return {
            name: "".join(call.get(name, "") for call in calls) for name in ("name", "arguments")
        }

    backend = Scripted(CALL)
    app = await app_of(backend)
    fields = {"tools": None, "functions": FUNCTIONS}
    whole, _ = await events_of(app, **fields)
    assert added(whole)["name"] == "weather"
    for cut in range(CALL.index("<tool_call>"), len(CALL), 9):
        backend.stops_after = cut
        had, reader = await events_of(app, **fields)
        backend.stops_after = None
        rest, _ = await events_of(app, reader.log, **fields)
        assert added(had + rest) == added(whole)
        assert rest[-1]["finish_reason"] == "function_call"


@pytest.mark.parametrize(
    ("call", "choice"),
    [
        (None, None),
        ("auto", "auto"),
        ("none", "none"),
        ({"name": "time"}, {"type": "function", "function": {"name": "time"}}),
    ],
)
async def test_functions_are_tools_of_which_one_is_called_at_most(call: Any, choice: Any) -> None:
    backend = Scripted("text")
    app = await app_of(backend)
    await events_of(app, tools=None, functions=FUNCTIONS, function_call=call)
    await events_of(app, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    old, new = backend.asked
    assert old.prompt == new.prompt
    assert bool(old.prompt.tools) == (call != "none")  # type: ignore[union-attr]
    grammars = old.sampling.grammar, new.sampling.grammar
    assert [one and one.text for one in grammars] == [grammars[1] and grammars[1].text] * 2
    params = [one.param for one in grammars[0].parts] if grammars[0] else []
    expected = {"none": [], "time": ["functions[1].parameters"]}
    name = call["name"] if isinstance(call, dict) else call
    both = ["functions[0].parameters", "functions[1].parameters"]
    assert params == expected.get(name, both)


@pytest.mark.parametrize(
    ("template", "pattern"),
    [
        (HERMES, "call_[0-9a-f]{24}"),
        ("[TOOL_CALLS] [ARGS]", "[a-z0-9]{9}"),
        ("<|tool_calls_section_begin|>", "functions[.]time:[01]"),
    ],
)
async def test_calls_have_ids_as_the_model_writes_them(template: str, pattern: str) -> None:
    backend = Scripted("text", chat_template=template)
    call = {"role": "assistant", "function_call": {"name": "time", "arguments": "{}"}}
    result = {"role": "function", "name": "time", "content": None}
    await events_of(
        await app_of(backend),
        tools=None,
        functions=FUNCTIONS,
        messages=[USER, call, result, call, result],
    )
    _, *turns = backend.asked[0].prompt.messages  # type: ignore[union-attr]
    ids = [turn["tool_calls"][0]["id"] for turn in turns[::2]]
    assert ids == [turn["tool_call_id"] for turn in turns[1::2]]
    assert len({*ids}) == 2
    assert all(re.fullmatch(pattern, one) for one in ids)


CALLED = {"role": "assistant", "function_call": {"name": "time", "arguments": "{}"}}
NEW_CALL = {"id": "c", "type": "function", "function": {"name": "time", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": TOOLS}, "functions", ["tools"]),
        ({"functions": None, "function_call": "auto"}, "function_call", ["functions"]),
        ({"functions": [], "function_call": "none"}, "function_call", ["functions"]),
        (
            {"functions": None, "tools": TOOLS, "function_call": "auto"},
            "function_call",
            ["functions", "tool_choice"],
        ),
        ({"tool_choice": "required"}, "functions", ["tool_choice"]),
        ({"function_call": "required"}, "function_call", ['"none", "auto"', '"name"']),
        ({"function_call": {"name": "time", "x": 1}}, "function_call", ['"name"']),
        ({"function_call": {"name": "rain"}}, "function_call", ['"rain"', "none of the functions"]),
        ({"functions": WEATHER}, "functions", ["array of at most 256"]),
        ({"functions": TOOLS}, "functions[0].name", ["required"]),
        ({"functions": [WEATHER, WEATHER]}, "functions[1].name", ["weather"]),
        (
            {"functions": [WEATHER | {"parameters": {"x": "y" * MAX_GRAMMAR_CHARS}}]},
            "functions",
            ["at most"],
        ),
        ({"min_tokens": 3}, "min_tokens", ["functions"]),
        (
            {"messages": [USER, {"role": "function", "content": "1"}]},
            "messages[1].name",
            ['role "function"'],
        ),
        (
            {"messages": [USER | {"function_call": CALLED["function_call"]}]},
            "messages[0].function_call",
            ['role "assistant"'],
        ),
        (
            {"messages": [USER, CALLED | {"tool_calls": [NEW_CALL]}]},
            "messages[1].function_call",
            ["tool_calls"],
        ),
        (
            {"messages": [USER, CALLED | {"function_call": {"name": "time", "arguments": "[]"}}]},
            "messages[1].function_call.arguments",
            ["JSON object, as a string"],
        ),
    ],
)
async def test_what_is_wrong_is_told_in_the_words_of_functions(
    fields: dict[str, Any], param: str, says: list[str]
) -> None:
    async with fake_replica(Scripted("text")) as one, gateway([one]) as running:
        client = AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0)
        with pytest.raises(BadRequestError) as caught:
            await client.chat.completions.create(**ASKED, extra_body=fields)
        await client.close()
    assert caught.value.param == param
    assert all(one in str(caught.value) for one in says)


async def test_what_the_model_can_not_serve_is_told_so_too() -> None:
    unheld = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}
    strict = ASKED | {"functions": [{"name": "f", "parameters": unheld, "strict": True}]}
    for fields, template, param in (
        (ASKED, "{{ messages }}", "functions"),
        (strict, "<tool_call>\n<function=", "functions[0].parameters"),
    ):
        backend = Scripted("text", chat_template=template)
        async with fake_replica(backend) as one, gateway([one]) as running:
            for path in ("/v1/chat/completions", "/tokenize"):
                response = await running.client.post(path, json=fields)
                assert response.status_code == 400, response.text
                error = response.json()["error"]
                assert error["param"] == param
                assert error["message"].startswith(param)
