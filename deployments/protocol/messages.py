"""The messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, FailFast, Field, model_validator

from deployments.protocol import unsupported
from deployments.protocol.left_out import refuse_image, without_unreadable
from deployments.protocol.strict import RefusedError, StrictModel
from deployments.protocol.tools import MAX_CALLS, ToolCall

MAX_PARTS = 1024
"""Of one message."""
MAX_NAME_CHARS = 256
CONTENT = 'a string or a non-empty array of {"type": "text"} parts'


def _as_parts(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MAX_PARTS:
        raise RefusedError(f"must have at most {MAX_PARTS} parts, not {len(value)}")
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class TextPart(StrictModel):
    unsupported: ClassVar = unsupported.CONTENT_PART_FIELDS

    type: Literal["text"] = Field(description='"text", the only kind of part that is supported')
    text: str = Field(description="a string")

    @model_validator(mode="before")
    @classmethod
    def _is_read_here(cls, data: Any) -> Any:
        refuse_image(data)
        return data


_ABSENT = {"type": "null"}
_SOME_CONTENT = {"content": {"type": ["string", "array"]}}
_NO_CALLS = {"tool_calls": {"anyOf": [_ABSENT, {"maxItems": 0}]}}
_NO_THOUGHT = {"reasoning_content": _ABSENT, "reasoning": _ABSENT}
_BY_ROLE: tuple[dict[str, Any], ...] = (
    {
        "properties": {
            "role": {"enum": ["system", "developer", "user"]},
            "tool_call_id": _ABSENT,
            **_SOME_CONTENT,
            **_NO_CALLS,
            **_NO_THOUGHT,
        },
        "required": ["content"],
    },
    {
        "properties": {
            "role": {"const": "tool"},
            "tool_call_id": {"type": "string"},
            **_SOME_CONTENT,
            **_NO_CALLS,
            **_NO_THOUGHT,
        },
        "required": ["content", "tool_call_id"],
    },
    {
        "properties": {
            "role": {"const": "assistant"},
            "tool_call_id": _ABSENT,
            **_SOME_CONTENT,
        },
        "required": ["content"],
    },
    {
        "properties": {
            "role": {"const": "assistant"},
            "tool_call_id": _ABSENT,
            "tool_calls": {"type": "array", "minItems": 1},
        },
        "required": ["tool_calls"],
    },
    *(
        {
            "properties": {
                "role": {"const": "assistant"},
                "tool_call_id": _ABSENT,
                name: {"type": "string", "minLength": 1},
            },
            "required": [name],
        }
        for name in ("reasoning_content", "reasoning")
    ),
)


class Message(StrictModel):
    unsupported: ClassVar = unsupported.MESSAGE_FIELDS

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description='"system", "developer", "user", "assistant" or "tool"'
    )
    content: Annotated[
        list[TextPart],
        FailFast(),
        BeforeValidator(
            _as_parts,
            json_schema_input_type=str
            | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS)],
        ),
    ] = Field([], min_length=1, description=CONTENT)
    name: str | None = Field(
        None,
        max_length=MAX_NAME_CHARS,
        description=f"a string of at most {MAX_NAME_CHARS} characters",
    )
    tool_call_id: str | None = Field(
        None, min_length=1, max_length=256, description="a string of at most 256 characters"
    )
    tool_calls: list[ToolCall] = Field(
        [], max_length=MAX_CALLS, description=f"an array of at most {MAX_CALLS} calls"
    )
    reasoning_content: str | None = Field(None, description="a string")
    reasoning: str | None = Field(None, description="a string")

    @model_validator(mode="before")
    @classmethod
    def _results_are_read_as_text(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("role") == "tool":
            return {**data, "content": without_unreadable(data.get("content"), "text")}
        return data

    @model_validator(mode="after")
    def _fields_fit_the_role(self) -> Self:
        if not (self.content or self.tool_calls or self.thought):
            raise RefusedError(f"is required: {CONTENT}", where=".content")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise RefusedError(
                'is required with role "tool", and allowed with no other', where=".tool_call_id"
            )
        for field in ("tool_calls", "reasoning_content", "reasoning"):
            if self.role != "assistant" and getattr(self, field):
                raise RefusedError('is only allowed with role "assistant"', where=f".{field}")
        return self

    @classmethod
    def complete_schema(cls, described: dict[str, Any]) -> None:
        described["anyOf"] = list(_BY_ROLE)

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content)

    def texts(self) -> Iterator[str]:
        """All that it brings into a prompt."""
        yield from (part.text for part in self.content)
        yield from filter(None, (self.thought,))
        for call in self.tool_calls:
            yield call.function.name
            yield json.dumps(call.function.arguments, ensure_ascii=False)

    @property
    def thought(self) -> str | None:
        return self.reasoning_content or self.reasoning

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it; they know no developer role."""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        for name, value in (
            ("name", self.name),
            ("tool_call_id", self.tool_call_id),
            ("reasoning_content", self.thought),
        ):
            if value is not None:
                message[name] = value
        return message
