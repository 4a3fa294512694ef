"""The messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, FailFast, Field, model_validator

from deployments.protocol import unsupported
from deployments.protocol.left_out import refuse_image, without_unreadable
from deployments.protocol.strict import RefusedError, StrictModel
from deployments.protocol.tools import MAX_CALLS, CalledFunction, ToolCall

MAX_PARTS = 1024
"""Of one message."""
MAX_NAME_CHARS = 256
CONTENT = 'a string or a non-empty array of {"type": "text"} parts'


def _as_parts(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MAX_PARTS:
        raise RefusedError(f"must have at most {MAX_PARTS} parts, not {len(value)}")
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _as_said(part: Any) -> Any:
    """Of an answer: a refusal is a text, too."""
    match part:
        case {"type": "refusal", "refusal": str(said)}:
            return {"type": "text", "text": said}
    return part


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
_NO_CALLS = {"tool_calls": {"anyOf": [_ABSENT, {"maxItems": 0}]}, "function_call": _ABSENT}
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
    {"properties": {"role": {"enum": ["assistant", "function"]}, "tool_call_id": _ABSENT}},
)


class Message(StrictModel):
    unsupported: ClassVar = unsupported.MESSAGE_FIELDS

    role: Literal["system", "developer", "user", "assistant", "tool", "function"] = Field(
        description='"system", "developer", "user", "assistant", "tool" or "function"'
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
    function_call: CalledFunction | None = Field(None, description="an object")
    reasoning_content: str | None = Field(None, description="a string")
    reasoning: str | None = Field(None, description="a string")

    @model_validator(mode="before")
    @classmethod
    def _what_was_said_and_done_is_read_as_text(cls, data: Any) -> Any:
        match data:
            case {"role": "tool" | "function"}:
                return {**data, "content": without_unreadable(data.get("content"), "text")}
            case {"role": "assistant", "content": [*parts]}:
                return {**data, "content": [*map(_as_said, parts)]}
            case {"role": "assistant", "refusal": str(said)} if not data.get("content"):
                return {**data, "content": said}
        return data

    @model_validator(mode="after")
    def _fields_fit_the_role(self) -> Self:
        if self.role not in ("assistant", "function") and not self.content:
            raise RefusedError(f"is required: {CONTENT}", where=".content")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise RefusedError(
                'is required with role "tool", and allowed with no other', where=".tool_call_id"
            )
        if self.role == "function" and self.name is None:
            raise RefusedError('is required with role "function"', where=".name")
        if self.function_call and self.tool_calls:
            raise RefusedError("can't be combined with tool_calls", where=".function_call")
        for field in ("tool_calls", "function_call", "reasoning_content", "reasoning"):
            if self.role != "assistant" and getattr(self, field):
                raise RefusedError('is only allowed with role "assistant"', where=f".{field}")
        return self

    @classmethod
    def complete_schema(cls, described: dict[str, Any]) -> None:
        described["anyOf"] = list(_BY_ROLE)

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content)

    @property
    def calls(self) -> list[ToolCall]:
        """A ``function_call`` has no id of its own: ``with_call_ids`` gives it one."""
        old = self.function_call
        return [ToolCall(id=old.name, function=old)] if old else self.tool_calls

    def texts(self) -> Iterator[str]:
        """All that it brings into a prompt."""
        yield from (part.text for part in self.content)
        yield from filter(None, (self.thought,))
        for call in self.calls:
            yield call.function.name
            yield json.dumps(call.function.arguments, ensure_ascii=False)

    @property
    def thought(self) -> str | None:
        return self.reasoning_content or self.reasoning

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it; they know no developer and no function role."""
        role = {"developer": "system", "function": "tool"}.get(self.role, self.role)
        message: dict[str, Any] = {"role": role, "content": self.text}
        if self.calls:
            message["tool_calls"] = [call.for_template() for call in self.calls]
        for name, value in (
            ("name", self.name),
            ("tool_call_id", self.tool_call_id),
            ("reasoning_content", self.thought),
        ):
            if value is not None:
                message[name] = value
        return message
