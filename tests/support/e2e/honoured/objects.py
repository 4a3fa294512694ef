"""Tables of what stands in requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.support.e2e.honoured.requests import (
    CALLS,
    COLD,
    EFFORT_OF_A_RESPONSE,
    GREEDY,
    HAS_A_BUDGET,
    MESSAGES_TOOL,
    REQUESTS,
    RESPONSE_TOOL,
    STORED,
    TEMPLATE_IS_TOLD,
    THINKING_OF_MESSAGES,
    TOOL,
)
from tests.support.e2e.honoured.rows import Elsewhere, Fields, Kind, Shown, Shows, Table

Placed = Callable[[dict[str, Any]], dict[str, Any]]
ABC = {"const": "abc"}
XYZ = {"const": "xyz"}
TWO = {
    "type": "object",
    "properties": {"a": {"const": 2}},
    "required": ["a"],
    "additionalProperties": False,
}
"""As the parameters of ``TOOL``, but another number."""
PARAMETERS = MESSAGES_TOOL["input_schema"]
CUSTOM = {"type": "custom", "name": "say"}
REGEX = {"type": "grammar", "syntax": "regex", "definition": "abc"}
HELLO = {"role": "user", "content": "Hello"}
CALL = {"id": "call_1", "function": {"name": "look", "arguments": "{}"}}


def chat(fields: Fields, shows: Shows, placed: Placed, **around: Any) -> Table:
    told = {"messages": [HELLO], **GREEDY, **around}
    return Table("/v1/chat/completions", fields, shows, told, placed)


def response(fields: Fields, shows: Shows, placed: Placed, **around: Any) -> Table:
    told = {"input": "Hello", "max_output_tokens": 12, **COLD, **around}
    return Table("/v1/responses", fields, shows, told, placed)


def message(fields: Fields, shows: Shows, placed: Placed, **around: Any) -> Table:
    told = {"messages": [HELLO], "max_tokens": 12, **COLD, **around}
    return Table("/v1/messages", fields, shows, told, placed)


def asked_for(one: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": one}}


def called(one: dict[str, Any]) -> dict[str, Any]:
    """An answer that has called, and what came of it."""
    result = {"role": "tool", "tool_call_id": "call_1", "content": "1"}
    return {"messages": [HELLO, {"role": "assistant", "tool_calls": [one]}, result]}


def in_a_conversation(one: dict[str, Any]) -> dict[str, Any]:
    return {"input": [HELLO, one]}


def with_a_call(one: dict[str, Any]) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    return {"input": [HELLO, call, one]}


def of_messages(one: dict[str, Any]) -> dict[str, Any]:
    """A block of a user, or of the model and then a user's word."""
    if one["type"] in ("text", "tool_result"):
        return {"messages": [{"role": "user", "content": [one]}]}
    text = {"type": "text", "text": "So."}
    return {"messages": [HELLO, {"role": "assistant", "content": [one, text]}, HELLO]}


TEXT_BLOCK = {"type": "text", "text": "Hi"}
RESULT = {"type": "tool_result", "tool_use_id": "c"}
USE = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
SAYS_ABC = {"type": "json_schema", "name": "n", "schema": ABC}
REQUIRED = {"tool_choice": "required", "max_output_tokens": 120}
AGENTS = "deployments/test_what_agents_send.py"
IS_STRICT = Elsewhere("e2e/test_honoured_fields.py", "test_a_strict_tool_is_held_or_refused")
OLDER_TAG = Elsewhere("deployments/test_structural_tag.py", "test_the_older_notation")
OF_A_CHAT = {
    "Reasoning": chat(
        {},
        {
            "effort": TEMPLATE_IS_TOLD,
            "enabled": TEMPLATE_IS_TOLD,
            "exclude": Elsewhere("deployments/test_tool_calls.py", "test_thoughts_may_be_left_out"),
            "max_tokens": HAS_A_BUDGET,
        },
        lambda one: {"reasoning": one},
    ),
    "ThinkingSwitch": chat(
        {},
        {"budget_tokens": HAS_A_BUDGET, "type": TEMPLATE_IS_TOLD},
        lambda one: {"thinking": one},
    ),
    "ResponseFormat": chat(
        {},
        {
            "format": Elsewhere(
                "deployments/test_structural_tag.py", "test_a_tag_lets_what_it_says"
            ),
            "json_schema": Shown(
                {"name": "n", "schema": XYZ},
                {"type": "json_schema", "json_schema": {"name": "n", "schema": ABC}},
            ),
            "structures": Elsewhere(
                "deployments/test_structural_tag.py", "test_the_older_notation"
            ),
            "triggers": Elsewhere("deployments/test_structural_tag.py", "test_the_older_notation"),
            "type": Shown("json_object", {"type": "text"}),
        },
        lambda one: {"response_format": one},
    ),
    "StructuredOutputs": chat(
        {},
        {
            "choice": Shown(["xyz"]),
            "grammar": Shown('root ::= "xyz"'),
            "json": Shown(XYZ),
            "json_object": Shown(True),
            "regex": Shown("xyz"),
            "structural_tag": Shown(
                {"type": "structural_tag", "format": {"type": "const_string", "value": "xyz"}}
            ),
        },
        lambda one: {"structured_outputs": one} if one else {},
    ),
    "StreamOptions": chat(
        {},
        {"continuous_usage_stats": Shown(True), "include_usage": Shown(True)},
        lambda one: {"stream_options": one},
        stream=True,
    ),
    "Message": chat(
        {"role": "user", "content": "Hello"},
        {
            "content": Shown("Bye"),
            "function_call": Shown(CALL["function"], {"role": "assistant"}),
            "name": Shown("ann"),
            "reasoning": Shown("Hm.", {"role": "assistant"}),
            "reasoning_content": Shown("Hm.", {"role": "assistant"}),
            "role": Shown("system"),
            "tool_call_id": Shown("d", {"role": "tool", "tool_call_id": "c"}),
            "tool_calls": Shown([CALL], {"role": "assistant"}),
        },
        lambda one: {"messages": [HELLO, one]},
    ),
    "Tool": chat(
        TOOL,
        {"function": Shown({"name": "another"}), "type": Kind()},
        lambda one: {"tools": [one]},
    ),
    "NamedSchema": chat({"name": "n", "schema": ABC}, {"schema": Shown(XYZ)}, asked_for),
    "TextPart": chat(
        {"type": "text", "text": "Hello"},
        {"text": Shown("Bye"), "type": Kind()},
        lambda one: {"messages": [{"role": "user", "content": [one]}]},
    ),
    "ToolCall": chat(
        CALL,
        {
            "function": Shown({"name": "another", "arguments": "{}"}),
            "id": Shown("another"),
            "type": Kind(),
        },
        called,
    ),
    "Function": chat(
        {"name": "look"},
        {
            "description": Shown("Looks."),
            "name": Shown("another"),
            "parameters": Shown(PARAMETERS),
            "strict": IS_STRICT,
        },
        lambda one: {"tools": [{"type": "function", "function": one}]},
        **{name: value for name, value in CALLS.items() if name != "tools"},
    ),
    "CalledFunction": chat(
        CALL["function"],  # type: ignore[arg-type]
        {"arguments": Shown('{"a": 1}'), "name": Shown("another")},
        lambda one: called({"id": "call_1", "function": one}),
    ),
}
OF_A_RESPONSE = {
    "MessageItem": response(
        HELLO,
        {"content": Shown("Bye"), "role": Shown("assistant"), "type": Kind()},
        in_a_conversation,
    ),
    "FunctionCallItem": response(
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {
            "arguments": Shown('{"a": 1}'),
            "call_id": Shown("d"),
            "name": Shown("another"),
            "namespace": Shown("fs"),
            "type": Kind(),
        },
        in_a_conversation,
    ),
    "CustomCallItem": response(
        {"type": "custom_tool_call", "call_id": "c", "name": "say", "input": "a"},
        {
            "call_id": Shown("d"),
            "input": Shown("b"),
            "name": Shown("another"),
            "namespace": Shown("fs"),
            "type": Kind(),
        },
        in_a_conversation,
    ),
    "OutputItem": response(
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"call_id": Shown("d"), "output": Shown("2"), "type": Kind()},
        with_a_call,
    ),
    "ReasoningItem": response(
        {"type": "reasoning"},
        {
            "content": Shown([{"type": "reasoning_text", "text": "Hm."}]),
            "encrypted_content": Shown("thought.SG0u"),
            "type": Kind(),
        },
        in_a_conversation,
    ),
    "HostedItem": response({"type": "web_search_call"}, {"type": Kind()}, in_a_conversation),
    "ItemReference": response(
        {"type": "item_reference", "id": "msg_1"},
        {
            "id": Elsewhere(STORED, "test_items_are_named_by_id_as_the_ai_sdk_does"),
            "type": Kind(),
        },
        in_a_conversation,
    ),
    "FunctionTool": response(
        {"type": "function", "name": "look"},
        {
            "description": Shown("Looks."),
            "name": Shown("another"),
            "parameters": Shown(PARAMETERS),
            "strict": IS_STRICT,
            "type": Kind(),
        },
        lambda one: {"tools": [one]},
        **REQUIRED,
    ),
    "CustomTool": response(
        CUSTOM,
        {
            "description": Shown("Says."),
            "format": Shown(REGEX),
            "name": Shown("another"),
            "type": Kind(),
        },
        lambda one: {"tools": [one]},
        **REQUIRED,
    ),
    "NamespaceTool": response(
        {"type": "namespace", "name": "fs", "tools": [RESPONSE_TOOL]},
        {
            "description": Shown("Files."),
            "name": Shown("db"),
            "tools": Shown([CUSTOM]),
            "type": Shown("web_search"),
        },
        lambda one: {"tools": [one]},
    ),
    "TextConfig": response(
        {}, {"format": Shown({"type": "json_object"})}, lambda one: {"text": one}
    ),
    "ReasoningConfig": response(
        {}, {"effort": EFFORT_OF_A_RESPONSE}, lambda one: {"reasoning": one}
    ),
    "ContentPart": response(
        {"type": "input_text", "text": "Hello"},
        {"text": Shown("Bye"), "type": Kind()},
        lambda one: {"input": [{"role": "user", "content": [one]}]},
    ),
    "SummaryPart": response(
        {"type": "summary_text", "text": "Hm."},
        {"type": Kind()},
        lambda one: in_a_conversation({"type": "reasoning", "summary": [one]}),
    ),
    "ThoughtPart": response(
        {"type": "reasoning_text", "text": "Hm."},
        {"text": Shown("Oh."), "type": Kind()},
        lambda one: in_a_conversation({"type": "reasoning", "content": [one]}),
    ),
    "InputFormat": response(
        REGEX,
        {"definition": Shown("xyz"), "syntax": Kind(), "type": Kind()},
        lambda one: {"tools": [{**CUSTOM, "format": one}]},
        **REQUIRED,
    ),
    "TextFormat": response(
        {},
        {
            "description": Shown("A word.", SAYS_ABC, told="text"),
            "name": Shown("m", SAYS_ABC, told="text"),
            "schema": Shown(XYZ, SAYS_ABC),
            "type": Shown("json_object", {"type": "text"}),
        },
        lambda one: {"text": {"format": one}},
    ),
}
OF_MESSAGES = {
    "InputMessage": message(
        HELLO,
        {
            "clear_at": Elsewhere(
                AGENTS, "test_what_the_system_said_for_one_turn_is_told_in_that_turn"
            ),
            "content": Shown("Bye"),
            "role": Shown("assistant"),
        },
        lambda one: {"messages": [HELLO, one]},
    ),
    "ContentBlock": message(
        {},
        {
            "content": Shown("1", RESULT),
            "id": Shown("d", USE),
            "input": Shown({"a": 1}, USE),
            "is_error": Shown(True, RESULT),
            "name": Shown("another", USE),
            "signature": Shown("thought.SG0u", {"type": "thinking", "thinking": ""}),
            "text": Shown("Bye", TEXT_BLOCK),
            "thinking": Shown("Oh.", {"type": "thinking", "thinking": "Hm."}),
            "tool_name": Elsewhere(AGENTS, "test_a_deferred_tool_is_told_once_it_was_referred_to"),
            "tool_use_id": Shown("d", RESULT),
            "type": Kind(TEXT_BLOCK),
        },
        of_messages,
    ),
    "MessagesTool": message(
        MESSAGES_TOOL,
        {
            "defer_loading": Shown(True),
            "description": Shown("Looks."),
            "input_schema": Shown(TWO),
            "name": Shown("another"),
            "strict": IS_STRICT,
            "type": Shown("web_search_20250305"),
        },
        lambda one: {"tools": [one]},
    ),
    "MessagesToolChoice": message(
        {"type": "any"},
        {
            "disable_parallel_tool_use": Shown(True, around={"temperature": 1.0}),
            "name": Shown("look", {"type": "tool", "name": "other"}),
            "type": Shown("none"),
        },
        lambda one: {"tool_choice": one},
        tools=[MESSAGES_TOOL, {**MESSAGES_TOOL, "name": "other"}],
        max_tokens=120,
    ),
    "ThinkingConfig": message(
        {},
        {
            "budget_tokens": THINKING_OF_MESSAGES,
            "display": Elsewhere("deployments/test_messages.py", "test_thoughts_may_be_left_out"),
            "type": THINKING_OF_MESSAGES,
        },
        lambda one: {"thinking": one},
    ),
    "OutputConfig": message(
        {},
        {
            "effort": THINKING_OF_MESSAGES,
            "format": Shown({"type": "json_schema", "schema": ABC}),
        },
        lambda one: {"output_config": one},
    ),
    "MessagesMetadata": message(
        {},
        {"user_id": REQUESTS["MessagesRequest"].shows["metadata"]},
        lambda one: {"metadata": one},
    ),
    "OutputFormat": message(
        {"type": "json_schema", "schema": ABC},
        {"schema": Shown(XYZ), "type": Kind()},
        lambda one: {"output_config": {"format": one}},
    ),
}
OF_A_RANKING = {
    "_Document": Table(
        "/v1/rerank",
        {"text": "one"},
        {"text": Shown("two")},
        {"query": "Hello"},
        lambda one: {"documents": [one]},
    )
}
OBJECTS: Mapping[str, Table] = {**OF_A_CHAT, **OF_A_RESPONSE, **OF_MESSAGES, **OF_A_RANKING}
