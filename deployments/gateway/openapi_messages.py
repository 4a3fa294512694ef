"""What the OpenAPI document says of answers in Anthropic's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_INTEGER: Schema = {"type": "integer"}


def anthropics_errors(described: Mapping[str, str]) -> Schema:
    """``described``: what each status means."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/AnthropicsError"}}}
    return {
        status: {"description": description, "content": content}
        for status, description in described.items()
    }


def messages_schemas() -> Schema:
    usage = _object(
        input_tokens=_INTEGER,
        cache_creation_input_tokens=_INTEGER,
        cache_read_input_tokens=_INTEGER,
        output_tokens=_INTEGER,
    )
    block = {
        "type": "object",
        "properties": {"type": {"enum": ["text", "thinking", "tool_use"]}},
        "required": ["type"],
    }
    return {
        "MessageAnswer": _object(
            id=_TEXT,
            type={"const": "message"},
            role={"const": "assistant"},
            model=_TEXT,
            content={"type": "array", "items": block},
            stop_reason=_TEXT,
            stop_sequence=_MAYBE_TEXT,
            usage=usage,
        ),
        "TokenCount": _object(input_tokens=_INTEGER),
        "AnthropicsError": _object(
            type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT), request_id=_TEXT
        ),
    }


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}
