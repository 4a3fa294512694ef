"""From a request of the Messages API to the chat that runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from deployments.backend.written import dumps
from deployments.http.errors import ApiError
from deployments.protocol.anthropic.blocks import ContentBlock
from deployments.protocol.anthropic.request import MessagesRequest
from deployments.protocol.anthropic.tools import MessagesTool
from deployments.protocol.chat import ChatCompletionRequest
from deployments.protocol.parsed import in_own_names

BILLING_LINE = "x-anthropic-billing-header:"
"""So begins a block that Claude Code puts before its system prompt: it is another one in each
conversation, and would be all that two of them have in common."""
FAILED = "The tool failed."
_OWN_NAMES: Mapping[str, str] = {
    "enable_thinking": "thinking.type",
    "continue_final_message": "messages",
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format.json_schema.schema": "output_config.format.schema",
    "thinking_token_budget": "thinking.budget_tokens",
}

ChatMessage = dict[str, Any]


def to_chat(request: MessagesRequest) -> ChatCompletionRequest:
    """Raises ``ApiError``."""
    chat: dict[str, Any] = {
        "model": request.model,
        "messages": [*_messages(request)],
        "max_completion_tokens": request.max_tokens,
        "stream": request.stream,
        "stop": request.stop_sequences,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "tools": [tool.for_chat() for _, tool in _told_tools(request)],
        **_continued(request),
        **_tool_choice(request),
        **_thinking(request),
    }
    if request.metadata is not None:
        # Claude Code's names a session.
        chat["prompt_cache_key"] = request.metadata.user_id
    if request.output_format is not None:
        named = {"name": "answer", "schema": request.output_format.json_schema}
        chat["response_format"] = {"type": "json_schema", "json_schema": named}
    try:
        return ChatCompletionRequest.parse(chat)
    except ApiError as error:
        raise in_own_names(error, own_names(request)) from None


def own_names(request: MessagesRequest) -> dict[str, str]:
    """Of the chat's fields."""
    names = dict(_OWN_NAMES)
    for told, (index, _) in enumerate(_told_tools(request)):
        shared = f"tools[{told}].function"
        names |= {shared: f"tools[{index}]", f"{shared}.parameters": f"tools[{index}].input_schema"}
    return names


def _told_tools(request: MessagesRequest) -> list[tuple[int, MessagesTool]]:
    """With their places. One that is deferred is told once it was named, or where nobody could."""
    named = {request.tool_choice.name} if request.tool_choice else set()
    for message in request.messages:
        for block in message.content:
            named |= {block.name, *(one.tool_name for one in block.content)}
    is_all = any(tool.searches for tool in request.tools)
    return [
        (index, tool)
        for index, tool in enumerate(request.tools)
        if is_all or not tool.defer_loading or tool.name in named
    ]


def _messages(request: MessagesRequest) -> Iterator[ChatMessage]:
    """Turns of one role that follow each other are one."""
    system = [block for block in request.system if not _is_billing_line(block)]
    turns = [("system", system)] if system else []
    last_asked = max(
        (i for i, message in enumerate(request.messages) if message.role == "user"), default=-1
    )
    turns += [
        (one.role, one.content)
        for i, one in enumerate(request.messages)
        if one.content or one.role != "system"
        if one.clear_at != "next_user_message" or i > last_asked
    ]
    tools = {tool.name: tool for tool in request.tools if tool.name}
    for role, group in groupby(turns, lambda turn: turn[0]):
        blocks = [block for _, content in group for block in content]
        if role == "system":
            yield {"role": role, "content": _text(blocks)}
        else:
            yield from [_answer(blocks)] if role == "assistant" else _asked(blocks, tools)


def _is_billing_line(block: ContentBlock) -> bool:
    return (block.text or "").startswith(BILLING_LINE)


def _asked(
    blocks: Iterable[ContentBlock], tools: Mapping[str, MessagesTool]
) -> Iterator[ChatMessage]:
    """A user's turn: results of tools are messages of their own."""
    for kind, group in groupby(blocks, lambda block: block.type):
        if kind == "text":
            yield {"role": "user", "content": _text(group)}
        else:
            yield from (_result(one, tools) for one in group)


def _result(block: ContentBlock, tools: Mapping[str, MessagesTool]) -> ChatMessage:
    told = "\n".join(_told(one, tools) for one in block.content) or (
        FAILED if block.is_error else ""
    )
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": told}


def _told(block: ContentBlock, tools: Mapping[str, MessagesTool]) -> str:
    """A tool that is referred to with all that is known of it."""
    if (tool := tools.get(block.tool_name or "")) is not None:
        return dumps(tool.for_chat()["function"], ensure_ascii=False)
    return block.text or block.tool_name or ""


def _answer(blocks: Iterable[ContentBlock]) -> ChatMessage:
    """What was thought and can't be read is left out."""
    blocks = list(blocks)
    calls = [_call(block) for block in blocks if block.type == "tool_use"]
    texts = [block for block in blocks if block.type == "text"]
    thoughts = [block.thought for block in blocks if block.thought]
    message: ChatMessage = {"role": "assistant"}
    if texts or not calls:
        message["content"] = _text(texts)
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return message


def _call(block: ContentBlock) -> dict[str, Any]:
    arguments = dumps(block.input, ensure_ascii=False)
    function = {"name": block.name, "arguments": arguments}
    return {"id": block.id, "type": "function", "function": function}


def _text(blocks: Iterable[ContentBlock]) -> str:
    return "\n".join(block.text for block in blocks if block.text)


def _continued(request: MessagesRequest) -> dict[str, Any]:
    """A model goes on with its own text where that comes last."""
    if request.messages[-1].role != "assistant":
        return {}
    return {"continue_final_message": True, "add_generation_prompt": False}


def _tool_choice(request: MessagesRequest) -> dict[str, Any]:
    choice = request.tool_choice
    if choice is None:
        return {}
    return {
        "tool_choice": choice.for_chat(),
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
    }


def _thinking(request: MessagesRequest) -> dict[str, Any]:
    """A model that is to think as it sees fit may do so, if it can."""
    effort = request.output_config.effort if request.output_config else None
    match request.thinking:
        case None:
            return {"reasoning_effort": effort}
        case thinking if thinking.type == "disabled":
            return {"enable_thinking": False}
        case thinking if thinking.type == "enabled":
            budget = {"thinking_token_budget": thinking.budget_tokens}
            return {"enable_thinking": True, "reasoning_effort": effort, **budget}
    return {"reasoning_effort": effort or "high"}
