"""Fields of ``/v1/responses``."""

from __future__ import annotations

import json
from typing import Any

from tests.support.deployments.bad_input.case import RESPONSES, BadInput

USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
HOSTED = {"type": "web_search"}


def tool(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "name": "f", **fields}]


def custom(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "custom", "name": "f", **fields}]


def space(*tools: Any) -> list[dict[str, Any]]:
    return [{"type": "namespace", "name": "n", "description": "", "tools": [*tools]}]


def user(content: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "user", "content": content}]


def schema(**fields: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", **fields}}


BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "required"),
    ({"input": 5}, "input", "string or a non-empty array"),
    ({"input": []}, "input", "non-empty"),
    ({"input": [USER] * 5000}, "input", "at most 4096"),
    ({"input": [USER, 5]}, "input[1]", "an object, not 5"),
    ({"input": [{"role": "tool", "content": ""}]}, "input[0].role", '"developer"'),
    ({"input": [{"role": "user"}]}, "input[0].content", "required"),
    ({"input": [USER | {"x": 1}]}, "input[0].x", "not a known field"),
    ({"input": user(5)}, "input[1].content", "a string or an array"),
    ({"input": user([5])}, "input[1].content[0]", "an object"),
    (
        {"input": user([{"type": "input_image", "image_url": "u"}])},
        "input[1].content[0].type",
        "text",
    ),
    ({"input": user([{"type": "input_file", "file_id": "u"}])}, "input[1].content[0].type", "text"),
    ({"input": user([{"type": "input_text"}])}, "input[1].content[0].text", "required"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id", "required"),
    ({"input": [{"type": "item_reference", "id": ""}]}, "input[0].id", "an item's id"),
    ({"input": [{"type": "compaction", "id": "c"}]}, "input[0].type", "one of"),
    ({"input": [CALL | {"arguments": "{]"}]}, "input[0].arguments", "JSON object"),
    ({"input": [CALL | {"arguments": {}}]}, "input[0].arguments", "as a string"),
    ({"input": [CALL | {"name": "a b"}]}, "input[0].name", "letters"),
    ({"input": [CALL | {"call_id": ""}]}, "input[0].call_id", "256"),
    ({"input": [{"type": "function_call_output", "output": ""}]}, "input[0].call_id", "required"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output", "required"),
    ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary", "array"),
    (
        {"input": [{"type": "reasoning", "content": [{"type": "x", "text": ""}]}]},
        "input[0].content[0].type",
        "reasoning_text",
    ),
    (
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "thought.?"}]},
        "input[0].encrypted_content",
        "this server gave",
    ),
    ({"instructions": 5}, "instructions", "a string"),
    ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    ({"temperature": 3}, "temperature", "from 0 to 2"),
    ({"top_p": 0}, "top_p", "more than 0"),
    ({"top_logprobs": 2}, "top_logprobs", "include"),
    ({"top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options", "stream is true"),
    ({"tools": 5}, "tools", "array"),
    ({"tools": [5]}, "tools[0]", "an object"),
    ({"tools": [{"name": "f"}]}, "tools[0].type", "required"),
    ({"tools": [{"type": []}]}, "tools[0].type", "a kind of tool"),
    ({"tools": tool() * 2}, "tools[1].name", "another tool's"),
    ({"tools": tool(name="a b")}, "tools[0].name", "letters"),
    ({"tools": tool(parameters=[], strict=True)}, "tools[0].parameters", "JSON schema"),
    (
        {"tools": tool(parameters={"type": "string"}, strict=True)},
        "tools[0].parameters",
        'an object: type is "string"',
    ),
    ({"tools": tool(async_=True)}, "tools[0].async_", "not a known field"),
    ({"tools": custom(format=LARK)}, "tools[0].format.syntax", "can't be enforced"),
    ({"tools": custom(format={"type": "grammar"})}, "tools[0].format.syntax", "required"),
    (
        {"tools": custom(format={"type": "grammar", "syntax": "regex"})},
        "tools[0].format.definition",
        "required",
    ),
    (
        {"tools": custom(format={"type": "text", "definition": "a"})},
        "tools[0].format.definition",
        "allowed with no other",
    ),
    ({"tools": custom(format={"type": "x"})}, "tools[0].format.type", '"grammar"'),
    ({"tools": space(HOSTED)}, "tools[0].tools[0].type", '"custom"'),
    ({"tools": space(*tool(), *tool())}, "tools[0].tools[1].name", "another tool's"),
    ({"tool_choice": "any"}, "tool_choice", '"auto"'),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tool_choice": HOSTED, "tools": [HOSTED]}, "tool_choice", "can't be run here"),
    (
        {"tool_choice": {"type": "function", "name": "g"}, "tools": tool()},
        "tool_choice",
        "none of the tools",
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [HOSTED]}},
        "tool_choice.tools[0]",
        "name",
    ),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
    ({"text": schema(name="n")}, "text.format.schema", "required"),
    ({"text": schema(schema={})}, "text.format.name", "required"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", '"minimal"'),
    ({"reasoning": {"context": "all_turns"}}, "reasoning.context", "not supported"),
    ({"store": "yes"}, "store", "a boolean"),
    ({"previous_response_id": 5}, "previous_response_id", "the id of a response"),
    ({"previous_response_id": "r" * 257}, "previous_response_id", "the id of a response"),
    ({"conversation": "conv_1"}, "conversation", "not supported"),
    ({"background": True}, "background", "leave it out"),
    ({"truncation": "auto"}, "truncation", "leave it out"),
    ({"prompt": {"id": "p"}}, "prompt", "not supported"),
    ({"max_tokens": 5}, "max_tokens", "not a known field"),
    ({"messages": [USER]}, "messages", "not a known field"),
]


def responses(model: str) -> list[BadInput]:
    cases = []
    for fields, param, says in BAD_FIELDS:
        body = json.dumps({"model": model, "input": "hi", **fields}).encode()
        label = f"response {param} {json.dumps(fields)[-50:]}"
        cases.append(BadInput(label, RESPONSES, body, param, (says,)))
    return cases
