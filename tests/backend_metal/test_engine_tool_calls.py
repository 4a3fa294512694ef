"""Tool calls of a model with random weights, over HTTP: nothing but the grammar makes them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai import AsyncOpenAI, BadRequestError
from prometheus_client import CollectorRegistry

from backend_metal.backend import MlxBackend
from deployments.backend import EngineConfig
from deployments.replica.app import build_replica_app
from tests.support.backend_metal import tiny_models
from tests.support.deployments.replica_server import SECRET, served

TEMPLATE = """\
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}{{ m.role }}: {{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|end|>{% endfor %}assistant: """
PARAMETERS = {
    "lookup": {
        "type": "object",
        "properties": {
            "kind": {"enum": ["bird", "fish"]},
            "limit": {"type": "integer", "minimum": 0, "maximum": 99},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        },
        "required": ["kind", "limit", "tags"],
        "additionalProperties": False,
    },
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}
    for name, parameters in PARAMETERS.items()
]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    tiny_models.save("qwen3", tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    backend = MlxBackend()
    model = await backend.start(
        EngineConfig(model=str(tmp_path), served_model_name="tiny", num_kv_blocks=256, device="cpu")
    )
    app = build_replica_app(
        backend=backend,
        model=model,
        secret=SECRET,
        registry=CollectorRegistry(),
        on_failure=lambda error_type: None,
        max_body_bytes=2**20,
        keep_alive_interval_s=60,
    )
    async with (
        served(app) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=SECRET, max_retries=0) as made,
    ):
        yield made
    await backend.stop()


def check(message: Any) -> list[Any]:
    calls = message.tool_calls or []
    for call in calls:
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, PARAMETERS[call.function.name])
    return list(calls)


async def test_required_calls_are_valid_streamed_and_whole(client: AsyncOpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Which?"}],
        "tools": TOOLS,
        "max_tokens": 1500,
        "parallel_tool_calls": False,
    }
    named = {"type": "function", "function": {"name": "stop"}}
    for seed, choice in ((1, "required"), (2, "required"), (3, named)):
        whole = await client.chat.completions.create(
            **asked, tool_choice=choice, seed=seed, n=3, temperature=0.7
        )
        async with client.chat.completions.stream(
            **asked, tool_choice=choice, seed=seed, n=3, temperature=0.7
        ) as stream:
            streamed = await stream.get_final_completion()
        for one, same in zip(whole.choices, streamed.choices, strict=True):
            assert one.finish_reason == same.finish_reason == "tool_calls"
            (call,) = check(one.message)
            (again,) = check(same.message)
            assert (call.function.name, call.function.arguments) == (
                again.function.name,
                again.function.arguments,
            )
            if choice == named:
                assert call.function.name == "stop"


async def test_a_whole_turn(client: AsyncOpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Which?"}]
    first = await client.chat.completions.create(
        model="tiny", messages=messages, tools=TOOLS, tool_choice="required", seed=1,
        max_tokens=1500, parallel_tool_calls=False,
    )  # fmt: skip
    message = first.choices[0].message
    (call,) = check(message)
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": '{"found": 3}'},
    ]
    free = await client.chat.completions.create(
        model="tiny", messages=messages, tools=TOOLS, max_tokens=30, seed=1
    )
    assert free.choices[0].finish_reason in ("length", "stop", "tool_calls")
    assert free.usage is not None
    assert first.usage is not None
    assert free.usage.prompt_tokens > first.usage.prompt_tokens + len(call.function.arguments)


async def test_tools_and_a_form_that_the_answer_must_have(client: AsyncOpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["bird", "fish"]}, "found": {"type": "boolean"}},
        "required": ["name", "found"],
        "additionalProperties": False,
    }
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Which?"}],
        "tools": TOOLS,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        "max_tokens": 1500,
        "parallel_tool_calls": False,
        "n": 4,
    }
    kinds = set()
    for seed in range(4):
        answer = await client.chat.completions.create(**asked, seed=seed)
        for choice in answer.choices:
            calls = check(choice.message)
            kinds.add(bool(calls))
            if not calls:
                jsonschema.validate(json.loads(choice.message.content or ""), schema)
    assert kinds == {True, False}
    for choice in (
        await client.chat.completions.create(**asked, tool_choice="none", seed=1)
    ).choices:
        assert not choice.message.tool_calls
        jsonschema.validate(json.loads(choice.message.content or ""), schema)
    for choice in (
        await client.chat.completions.create(**asked, tool_choice="required", seed=1)
    ).choices:
        assert check(choice.message)
        assert not choice.message.content


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"x": {"not": {}}}, '.properties.x: keyword "not" can\'t be enforced'),
        (
            {"a b": {"items": {"type": "foo"}}},
            " must be a JSON schema of an object: properties.a b.",
        ),
    ],
)
async def test_a_refused_schema_of_a_tool_says_which_and_where(
    client: AsyncOpenAI, schema: dict[str, Any], where: str
) -> None:
    parameters = {"type": "object", "properties": schema}
    bad = {"name": "bad", "parameters": parameters, "strict": True}
    tools: Any = [*TOOLS, {"type": "function", "function": bad}]
    for more in ({}, {"tool_choice": {"type": "function", "function": {"name": "bad"}}}):
        with pytest.raises(BadRequestError) as caught:
            await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "?"}], tools=tools, **more
            )
        assert caught.value.param == "tools[2].function.parameters"
        assert f"tools[2].function.parameters{where}" in str(caught.value)
