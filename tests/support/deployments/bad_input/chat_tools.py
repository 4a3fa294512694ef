"""Tools of a chat."""

from __future__ import annotations

import json
from typing import Any

from tests.support.deployments.bad_input.case import CHAT, BadInput


def chat_tools(model: str) -> list[BadInput]:
    def tools(name: str, value: Any, param: str, *says: str, **more: Any) -> BadInput:
        user = {"role": "user", "content": "hi"}
        fields = {"model": model, "messages": [user], "tools": value, **more}
        return BadInput(f"tools: {name}", CHAT, json.dumps(fields).encode(), param, says)

    def tool(**fields: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "f", **fields}}

    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"items": deep}
    function = "tools[0].function"
    return [
        tools("no array", {}, "tools", "array of at most 256"),
        tools("no object", [1], "tools[0]", "object"),
        tools("too many", [tool()] * 257, "tools", "at most 256"),
        tools("kind", [{"type": "web search"}], "tools[0].type", '"function"'),
        tools("kind with a function", [tool() | {"type": "web_search"}], "tools[0].type",
              '"function"', "web_search"),
        tools("custom", [{"type": "custom", "custom": {"name": "f"}}], "tools[0].custom",
              "not supported"),
        tools("no function", [{"type": "function"}], "tools[0].function", "required"),
        tools("no kind", [{}], "tools[0].type", "required"),
        tools("choice of a dropped one", [{"type": "web_search"}], "tool_choice", '"auto"',
              tool_choice={"type": "web_search"}),
        tools("choice of dropped ones", [{"type": "web_search"}], "tool_choice", "no tools",
              tool_choice="required"),
        tools("no name", [{"type": "function", "function": {}}], f"{function}.name", "required"),
        tools("name", [tool(name="a b")], f"{function}.name", "letters, digits"),
        tools("twice", [tool(), tool()], "tools[1].function.name", "another tool's"),
        tools("parameters", [tool(parameters=[], strict=True)], f"{function}.parameters",
              "JSON schema"),
        tools("array", [tool(parameters={"type": "array"}, strict=True)], f"{function}.parameters",
              'type is "array"'),
        tools("deep", [tool(parameters=deep)], f"{function}.parameters", "64 levels"),
        tools("strict", [tool(strict=1)], f"{function}.strict", "boolean"),
        tools("unknown field", [tool(parameter={})], f"{function}.parameter", "parameters?"),
        tools("choice", [tool()], "tool_choice", '"auto"', tool_choice="always"),
        tools("choice of none", [], "tool_choice", "no tools", tool_choice="required"),
        tools("choice of another", [tool()], "tool_choice", '"g"',
              tool_choice={"type": "function", "function": {"name": "g"}}),
        tools("choice with more", [tool()], "tool_choice", '"auto"',
              tool_choice={"type": "function", "function": {"name": "f", "x": 1}}),
        tools("subset", [tool()], "tool_choice", "allowed_tools.tools", tool_choice={
            "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [1]}}),
        tools("functions, too", [tool()], "functions", "tools", functions=[{"name": "f"}]),
        tools("their choice", [tool()], "function_call", "functions", function_call="auto"),
        tools("parallel", [tool()], "parallel_tool_calls", "boolean", parallel_tool_calls="no"),
    ]  # fmt: skip
