"""From a request of the Messages API to the chat that runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from deployments.backend.written import dumps
from deployments.http.errors import ApiError
from deployments.protocol.anthropic.blocks import ContentBlock
from deployments.protocol.anthropic.request import MessagesRequest
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
        "tools": [tool.for_chat() for tool in request.tools],
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
    for index in range(len(request.tools)):
        shared = f"tools[{index}].function"
        names |= {shared: f"tools[{index}]", f"{shared}.parameters": f"tools[{index}].input_schema"}
    return names


def _messages(request: MessagesRequest) -> Iterator[ChatMessage]:
    """Turns of one role that follow each other are one."""
    system = [block for block in request.system if not _is_billing_line(block)]
    turns = [("system", system)] if system else []
    turns += [(one.role, one.content) for one in request.messages]
    for role, group in groupby(turns, lambda turn: turn[0]):
        blocks = [block for _, content in group for block in content]
        if role == "system":
            yield {"role": role, "content": _text(blocks)}
        else:
            yield from [_answer(blocks)] if role == "assistant" else _asked(blocks)


def _is_billing_line(block: ContentBlock) -> bool:
    return (block.text or "").startswith(BILLING_LINE)


def _asked(blocks: Iterable[ContentBlock]) -> Iterator[ChatMessage]:
    """A user's turn: results of tools are messages of their own."""
    for kind, group in groupby(blocks, lambda block: block.type):
        if kind == "text":
            yield {"role": "user", "content": _text(group)}
        else:
            yield from map(_result, group)


def _result(block: ContentBlock) -> ChatMessage:
    told = _text(block.content) or (FAILED if block.is_error else "")
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": told}


def _answer(blocks: Iterable[ContentBlock]) -> ChatMessage:
    """What was thought and can't be read is left out."""
    blocks = list(blocks)
    calls = [_call(block) for block in blocks if block.type == "tool_use"]
    texts = [block for block in blocks if block.type == "text"]
    thoughts = [block.thinking for block in blocks if block.thinking]
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
    return "\n".join(block.text or "" for block in blocks)


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
