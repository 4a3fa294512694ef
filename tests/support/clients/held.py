"""Whether an answer is what its request holds it to, by JSON Schema's own validator: calls of the
tools that there are, a call where one is required, text of the schema that is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from tests.support.clients.wiretap import Exchange


@dataclass(frozen=True)
class Asked:
    tools: Mapping[str, Any]
    """Schemas of their arguments, by name; of one alone where that is to be called."""
    requires_call: bool
    form: Any
    """The schema of the text; None: any text will do."""


@dataclass(frozen=True)
class Answer:
    text: str
    calls: tuple[tuple[str, str], ...]
    """Name and arguments, as JSON."""
    is_whole: bool


@dataclass(frozen=True)
class Held:
    """How many answers there were of each kind, all of them valid."""

    calls: int
    forms: int


def held(exchanges: list[Exchange]) -> Held:
    """Raises ``AssertionError`` or ``jsonschema.ValidationError`` for what is not as asked."""
    calls = forms = 0
    for exchange in exchanges:
        if exchange.path not in _APIS:
            continue
        asked_of, answer_of = _APIS[exchange.path]
        assert exchange.status == 200, (exchange.asked, bytes(exchange.answer))
        assert exchange.is_over, exchange.asked
        asked, answer = asked_of(exchange.asked), answer_of(exchange)
        assert answer.is_whole, (exchange.asked, answer)
        for name, arguments in answer.calls:
            _validate(json.loads(arguments), asked.tools[name])
        if asked.requires_call:
            assert answer.calls, (exchange.asked, answer)
            calls += 1
        elif asked.form is not None and not answer.calls:
            _validate(json.loads(answer.text), asked.form)
            forms += 1
    return Held(calls, forms)


def _validate(value: Any, schema: Any) -> None:
    jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)


def _events(exchange: Exchange) -> Iterator[Any]:
    for line in exchange.answer.decode().splitlines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield json.loads(data)


def _asked(tools: Mapping[str, Any], choice: Any, form: Any) -> Asked:
    """``choice``: a word, or an object that may name a tool."""
    if not isinstance(choice, Mapping):
        return Asked(tools, choice == "required", form)
    name = choice.get("function", choice).get("name")
    chosen = tools if name is None else {name: tools[name]}
    return Asked(chosen, choice["type"] in ("function", "any", "tool"), form)


def _chat_asked(body: Any) -> Asked:
    functions = [tool["function"] for tool in body.get("tools") or []]
    format_ = body.get("response_format") or {}
    return _asked(
        {one["name"]: one.get("parameters", {}) for one in functions},
        body.get("tool_choice"),
        format_.get("json_schema", {}).get("schema"),
    )


def _chat_answer(exchange: Exchange) -> Answer:
    if exchange.asked.get("stream"):
        state: Any = ChatCompletionStreamState()
        for event in _events(exchange):
            state.handle_chunk(ChatCompletionChunk.model_validate(event))
        found = state.get_final_completion().model_dump()
    else:
        found = json.loads(exchange.answer)
    [choice] = found["choices"]
    functions = [call["function"] for call in choice["message"].get("tool_calls") or []]
    return Answer(
        choice["message"].get("content") or "",
        tuple((one["name"], one["arguments"]) for one in functions),
        choice["finish_reason"] in ("stop", "tool_calls"),
    )


def _response_asked(body: Any) -> Asked:
    return _asked(
        {tool["name"]: tool.get("parameters") or {} for tool in body.get("tools") or []},
        body.get("tool_choice"),
        body.get("text", {}).get("format", {}).get("schema"),
    )


def _response_answer(exchange: Exchange) -> Answer:
    if exchange.asked.get("stream"):
        *_, last = _events(exchange)
        found = last["response"]
    else:
        found = json.loads(exchange.answer)
    items = found["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    return Answer(
        "".join(part["text"] for part in parts),
        tuple(
            (item["name"], item["arguments"]) for item in items if item["type"] == "function_call"
        ),
        found["status"] == "completed",
    )


def _message_asked(body: Any) -> Asked:
    format_ = body.get("output_config", {}).get("format") or body.get("output_format") or {}
    return _asked(
        {tool["name"]: tool["input_schema"] for tool in body.get("tools") or []},
        body.get("tool_choice"),
        format_.get("schema"),
    )


def _message_answer(exchange: Exchange) -> Answer:
    assert not exchange.asked.get("stream"), "no client that streams messages is held to anything"
    found = json.loads(exchange.answer)
    blocks = found["content"]
    return Answer(
        "".join(one["text"] for one in blocks if one["type"] == "text"),
        tuple(
            (one["name"], json.dumps(one["input"])) for one in blocks if one["type"] == "tool_use"
        ),
        found["stop_reason"] in ("end_turn", "tool_use"),
    )


_APIS = {
    "/v1/chat/completions": (_chat_asked, _chat_answer),
    "/v1/responses": (_response_asked, _response_answer),
    "/v1/messages": (_message_asked, _message_answer),
}
