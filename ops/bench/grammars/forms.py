"""What answers are held to: calls of as many tools as a coding agent brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from deployments.backend import SamplingParams
from deployments.protocol import ChatCompletionRequest, to_generation_requests
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.protocol.chat_formats.formats import FORMATS

NUM_TOOLS = 24
Form = Literal["free", "auto", "required", "schema"]
"""Nothing; calls where the model wants them; calls alone; a JSON schema."""
FORMS: tuple[Form, ...] = ("free", "auto", "required", "schema")

_TEXT = {"type": "string", "maxLength": 524_288}
_LINES = {"type": "integer", "minimum": 0, "maximum": 9_007_199_254_740_991}
_EDIT = {
    "type": "object",
    "properties": {"old_text": _TEXT, "new_text": _TEXT, "everywhere": {"type": "boolean"}},
    "required": ["old_text", "new_text"],
    "additionalProperties": False,
}
_PARAMETERS: Mapping[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "explanation": _TEXT,
        "file_path": _TEXT,
        "edits": {"type": "array", "items": _EDIT, "minItems": 1},
        "mode": {"enum": ["preview", "apply", "apply_and_format"]},
        "first_line": _LINES,
        "number_of_lines": _LINES,
    },
    "required": ["explanation", "file_path", "edits"],
    "additionalProperties": False,
}


def sampling(form: Form, *, seed: int, max_tokens: int) -> SamplingParams:
    """As a chat with such a body is drawn, by a model that writes calls as Qwen3 does."""
    body: dict[str, Any] = {
        "model": "random",
        "messages": [{"role": "user", "content": "."}],
        "temperature": 1.0,
        "seed": seed,
        "max_tokens": max_tokens,
    }
    if form in ("auto", "required"):
        body |= {"tools": [_tool(number) for number in range(NUM_TOOLS)], "tool_choice": form}
    elif form == "schema":
        schema = {"name": "edit", "schema": _PARAMETERS}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    request = ChatCompletionRequest.parse(body)
    (made,) = to_generation_requests(request, "r", SamplingParams(), Dialect(FORMATS["hermes"]))
    return made.sampling


def _tool(number: int) -> dict[str, Any]:
    function = {
        "name": f"edit_file_in_way_{number}",
        "description": "Changes a file.",
        "parameters": _PARAMETERS,
    }
    return {"type": "function", "function": function}
