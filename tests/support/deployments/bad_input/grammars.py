"""What an answer must match, of a chat or a completion."""

from __future__ import annotations

import json
from typing import Any

from tests.support.deployments.bad_input.case import CHAT, COMPLETIONS, BadInput


def grammars(model: str) -> list[BadInput]:
    def field(where: str, value: Any, *says: str, param: str = "", path: str = CHAT) -> BadInput:
        prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        if path == COMPLETIONS:
            prompt = {"prompt": "hi"}
        name, *inner = where.split(".")
        for key in reversed(inner):
            value = {key: value}
        body = json.dumps({"model": model, **prompt, name: value}).encode()
        told = ", ".join(says)[:20]
        return BadInput(f"{where} {str(value)[:60]} {told}", path, body, param or where, says)

    def schema(named: Any, *says: str, param: str) -> BadInput:
        wanted = {"type": "json_schema", "json_schema": named}
        return field("response_format", wanted, *says, param=f"response_format{param}")

    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"items": deep}
    return [
        field("response_format", "json", "an object"),
        field("response_format", {}, "required", param="response_format.type"),
        field("response_format", {"type": "xml"}, '"json_schema"', param="response_format.type"),
        field("response_format", {"type": "text", "schema": {}}, "not a known field",
              param="response_format.schema"),
        field("response_format", {"type": "json_schema"}, "is required",
              param="response_format.json_schema"),
        field("response_format", {"type": "json_object", "json_schema": {"name": "a"}},
              "no other", param="response_format.json_schema"),
        schema({}, "required", param=".json_schema.name"),
        schema({"name": "a b"}, "letters, digits", param=".json_schema.name"),
        schema({"name": "a", "schema": True}, "an object", param=".json_schema.schema"),
        schema({"name": "a", "schema": deep}, "64 levels", param=".json_schema.schema"),
        schema({"name": "a", "strict": "yes"}, "boolean", param=".json_schema.strict"),
        schema({"name": "a", "shema": {}}, "Did you mean schema?", param=".json_schema.shema"),
        field("structured_outputs", [], "an object"),
        field("structured_outputs.json", 5, "a JSON schema", path=COMPLETIONS),
        field("structured_outputs.json", "{", "a JSON schema"),
        field("structured_outputs.json", "[" * 50_000, "a JSON schema"),
        field("structured_outputs.regex", "", "regular expression"),
        field("structured_outputs.choice", [], "non-empty array"),
        field("structured_outputs.choice", ["a", ""], param="structured_outputs.choice[1]"),
        field("structured_outputs.choice", ["a"] * 1025, "at most 1024"),
        field("structured_outputs.grammar", 1, "grammar"),
        field("structured_outputs", {"regex": "a", "choice": ["a"]}, "send one of them",
              param="structured_outputs.choice"),
        field("guided_json", [], "a JSON schema"),
        field("guided_choice", "a", "array"),
        field("guided_grammar", {}, "grammar", path=COMPLETIONS),
    ]  # fmt: skip
