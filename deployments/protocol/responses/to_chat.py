"""A response's request in the form of a chat's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from deployments.http.errors import ApiError
from deployments.protocol.chat import ChatCompletionRequest
from deployments.protocol.parsed import ParsedRequest, in_own_names
from deployments.protocol.responses.context import Context, check_resolved
from deployments.protocol.responses.items import (
    MAX_ITEMS,
    CustomCallItem,
    FunctionCallItem,
    InputItem,
    ItemReference,
    MessageItem,
    OutputItem,
    ReasoningItem,
)
from deployments.protocol.responses.request import ResponsesRequest
from deployments.protocol.responses.stream_form import RESPONSES_STREAM
from deployments.protocol.responses.tools import CustomTool, HostedTool, flat_name


def parse_responses(data: dict[str, Any], context: Context | None = None) -> ParsedRequest:
    """``context``: what the request refers to, without which it may refer to nothing. Raises
    ``ApiError`` 400 naming the field and what is allowed, and ``UnresolvedError``."""
    asked = ResponsesRequest.parse(data)
    if context is None:
        check_resolved(asked)
        context = Context()
    if (num_items := len(context.previous) + len(asked.input)) > MAX_ITEMS:
        raise ApiError(
            400,
            f"previous_response_id and input have {num_items} items; {MAX_ITEMS} are allowed.",
            param="previous_response_id",
        )
    messages = _Messages(asked, context)
    own_names = {
        **_tool_names(asked),
        **{f"messages[{i}]": place for i, place in enumerate(messages.places)},
        "messages": "input",
        "max_completion_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
        "response_format.json_schema.schema": "text.format.schema",
        "response_format": "text.format",
    }
    chat = {
        "model": asked.model,
        "messages": messages.messages,
        "stream": asked.stream,
        "max_completion_tokens": asked.max_output_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "presence_penalty": asked.presence_penalty,
        "frequency_penalty": asked.frequency_penalty,
        "logprobs": asked.has_logprobs,
        "top_logprobs": asked.top_logprobs,
        "tools": [*_functions(asked), *_hosted(asked)],
        "tool_choice": _choice(asked.tool_choice),
        "parallel_tool_calls": asked.parallel_tool_calls,
        "response_format": _response_format(asked),
        "reasoning_effort": asked.reasoning.effort,
        "prompt_cache_key": asked.prompt_cache_key,
    }
    try:
        form = ChatCompletionRequest.parse(chat)
    except ApiError as error:
        raise in_own_names(error, own_names) from None
    return ParsedRequest(form, asked, RESPONSES_STREAM, own_names)


def _tool_names(asked: ResponsesRequest) -> dict[str, str]:
    names = {}
    for index, one in enumerate(asked.callables):
        shared = f"tools[{index}].function"
        names[shared] = one.where
        if isinstance(one.tool, CustomTool):
            names[f"{shared}.parameters"] = f"{one.where}.format"
            names[f"{shared}.parameters.properties.input"] = f"{one.where}.format.definition"
    return names


def _functions(asked: ResponsesRequest) -> Iterator[dict[str, Any]]:
    for one in asked.callables:
        function = {
            "name": one.name,
            "description": one.description,
            "parameters": one.tool.parameters,
            "strict": one.tool.strict,
        }
        yield {"type": "function", "function": function}


def _hosted(asked: ResponsesRequest) -> Iterator[dict[str, Any]]:
    for tool in asked.tools:
        if isinstance(tool, HostedTool):
            yield {"type": tool.type}


def _choice(choice: Any) -> Any:
    match choice:
        case str():
            return choice
        case {"type": "allowed_tools", "mode": mode, "tools": tools}:
            allowed = {"mode": mode, "tools": [_named(tool) for tool in tools]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
    return _named(choice)


def _named(tool: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": flat_name(tool["name"], tool.get("namespace"))},
    }


def _response_format(asked: ResponsesRequest) -> dict[str, Any]:
    wanted = asked.text.format
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    named = {"name": wanted.name, "schema": wanted.json_schema, "strict": wanted.strict}
    return {"type": "json_schema", "json_schema": named}


class _Messages:
    """Items as messages: thoughts, text and calls that follow each other are of one."""

    def __init__(self, asked: ResponsesRequest, context: Context) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []
        """Where each begins in the request."""
        if asked.instructions is not None:
            self._add("instructions", role="system", content=asked.instructions)
        self._place = "previous_response_id"
        for item in context.previous:
            self._convert(item)
        for index, one in enumerate(asked.input):
            self._place = f"input[{index}]"
            self._convert(context.named[one.id] if isinstance(one, ItemReference) else one)

    def _convert(self, item: InputItem) -> None:
        match item:
            case MessageItem(role="assistant"):
                self._assistant("content", "tool_calls")["content"] = item.text
            case MessageItem():
                self._add(self._place, role=item.role, content=item.text)
            case ReasoningItem():
                if item.text:
                    message = self._assistant("reasoning_content", "content", "tool_calls")
                    message["reasoning_content"] = item.text
            case FunctionCallItem():
                self._call(item, item.arguments)
            case CustomCallItem():
                self._call(item, json.dumps({"input": item.input}, ensure_ascii=False))
            case OutputItem():
                self._add(self._place, role="tool", tool_call_id=item.call_id, content=item.text)

    def _call(self, item: FunctionCallItem | CustomCallItem, arguments: str) -> None:
        function = {
            "name": flat_name(item.name, item.namespace),
            "arguments": arguments,
        }
        calls = self._assistant().setdefault("tool_calls", [])
        calls.append({"id": item.call_id, "type": "function", "function": function})

    def _assistant(self, *taken: str) -> dict[str, Any]:
        """The message that the model's next item belongs to: the last one if it is the model's
        and has none of ``taken``."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or any(name in last for name in taken):
            self._add(self._place, role="assistant")
        return self.messages[-1]

    def _add(self, place: str, **message: Any) -> None:
        self.messages.append(message)
        self.places.append(place)
