"""The blocks that a message is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BeforeValidator, FailFast, Field, model_validator

from deployments.http.errors import shown
from deployments.protocol.anthropic import rules
from deployments.protocol.carried_thought import checked_thought, read_carried
from deployments.protocol.dropped import drop
from deployments.protocol.json_body import is_deeper
from deployments.protocol.left_out import refuse_image, without_unreadable
from deployments.protocol.messages import MAX_PARTS
from deployments.protocol.strict import RefusedError, StrictModel
from deployments.protocol.structured_output import MAX_SCHEMA_DEPTH
from deployments.protocol.tools import NAME, NAME_PATTERN, parse_arguments

MAX_ID_CHARS = 256
CONTENT = "a string or an array of blocks"


class _Kind(NamedTuple):
    needs: tuple[str, ...]
    may_have: tuple[str, ...] = ()


_KINDS = {
    "text": _Kind(("text",)),
    "thinking": _Kind(("thinking",), ("signature",)),
    "redacted_thinking": _Kind(("data",)),
    "tool_use": _Kind(("id", "name", "input")),
    "tool_result": _Kind(("tool_use_id",), ("content", "is_error")),
    "tool_reference": _Kind(("tool_name",)),
}
_UNREADABLE = ("document", "search_result", "container_upload", "file")
_HOSTED = re.compile(
    "(server|mcp)_tool_use|mcp_tool_listing|fallback|compaction|[a-z_]{1,48}_tool_result"
)
"""Of what a vendor ran for an earlier answer: no model here has seen its like."""
_TYPES = ", ".join(map(shown, _KINDS))


def as_blocks(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MAX_PARTS:
        raise RefusedError(f"must have at most {MAX_PARTS} blocks, not {len(value)}")
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _as_result(value: Any) -> Any:
    if isinstance(value, list):
        value = [_as_text(one) for one in value]
    return as_blocks(without_unreadable(value, "text", "tool_reference"))


def _as_text(block: Any) -> Any:
    """As a block of text, if that is all there is in it."""
    match block:
        case {"type": "document", "source": {"type": "text", "data": said}}:
            pass
        case {"type": "document", "source": {"type": "content", "content": said}}:
            pass
        case {"type": "search_result" | "compaction", "content": said}:
            pass
        case _:
            return block
    parts = [{"text": said}] if isinstance(said, str) else said
    texts = [
        one["text"]
        for one in (parts if isinstance(parts, list) else ())
        if isinstance(one, dict) and isinstance(one.get("text"), str)
    ]
    if not texts or len(texts) < len(parts):
        return block
    about = (block.get(name) for name in ("title", "source", "context"))
    lines = [*(one for one in about if isinstance(one, str)), *texts]
    return {"type": "text", "text": "\n".join(lines)}


def _checked_input(value: Any) -> Any:
    if isinstance(value, str):
        # As it was streamed, perhaps cut short.
        return parse_arguments(value)
    if isinstance(value, dict) and is_deeper(value, MAX_SCHEMA_DEPTH):
        raise RefusedError(f"must nest at most {MAX_SCHEMA_DEPTH} levels deep")
    return value


class ContentBlock(StrictModel):
    """Of any kind; which fields it has depends on that."""

    unsupported: ClassVar = rules.BLOCK_FIELDS
    only_checked: ClassVar = {
        "data": "what was hidden can be read by whoever hid it alone",
    }

    type: Literal[
        "text", "thinking", "redacted_thinking", "tool_use", "tool_result", "tool_reference"
    ] = Field(description=f"one of {_TYPES}")
    text: str | None = Field(None, description="a string")
    thinking: str | None = Field(None, description="a string")
    signature: Annotated[str, BeforeValidator(checked_thought)] | None = Field(
        None, description="a string that this server gave, or another one: then it is not read"
    )
    data: str | None = Field(None, description="a string")
    id: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_ID_CHARS,
        description=f"a non-empty string of at most {MAX_ID_CHARS} characters",
    )
    name: str | None = Field(None, pattern=NAME_PATTERN, description=NAME)
    input: Annotated[dict[str, Any], BeforeValidator(_checked_input)] | None = Field(
        None, description="an object"
    )
    tool_use_id: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_ID_CHARS,
        description=f"a non-empty string of at most {MAX_ID_CHARS} characters",
    )
    content: Annotated[
        list[ContentBlock],
        FailFast(),
        BeforeValidator(
            _as_result,
            json_schema_input_type=str | Annotated[list[ContentBlock], Field(max_length=MAX_PARTS)],
        ),
    ] = Field([], description=CONTENT)
    is_error: bool | None = Field(None, description="a boolean")
    tool_name: str | None = Field(None, pattern=NAME_PATTERN, description=NAME)

    @property
    def thought(self) -> str:
        return self.thinking or read_carried(self.signature or "")

    @model_validator(mode="before")
    @classmethod
    def _is_read_here(cls, data: Any) -> Any:
        data = _as_text(data)
        refuse_image(data)
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind in _UNREADABLE:
            raise RefusedError(f"is {shown(kind)}, but this model reads text", where=".type")
        if isinstance(kind, str) and _HOSTED.fullmatch(kind):
            drop(kind)
            return {"type": "text", "text": ""}
        return data

    @model_validator(mode="after")
    def _fields_fit_the_type(self) -> Self:
        kind = _KINDS[self.type]
        for name in kind.needs:
            if getattr(self, name) is None:
                description = type(self).model_fields[name].description
                raise RefusedError(f"is required: {description}", where=f".{name}")
        for name in self.model_fields_set - {"type", *kind.needs, *kind.may_have}:
            raise RefusedError(f"is not for a block of type {self.type}", where=f".{name}")
        told = ("text", "tool_reference")
        refuse_other_types(self.content, told, "the content of a tool_result")
        return self

    @classmethod
    def complete_schema(cls, described: dict[str, Any]) -> None:
        names = {name for kind in _KINDS.values() for name in (*kind.needs, *kind.may_have)}
        described["anyOf"] = [
            {
                "properties": {
                    "type": {"const": name},
                    **{one: {"type": "null"} for one in names - {*kind.needs, *kind.may_have}},
                    **{one: {"not": {"type": "null"}} for one in kind.needs},
                },
                "required": ["type", *kind.needs],
            }
            for name, kind in _KINDS.items()
        ]


def refuse_other_types(blocks: Iterable[ContentBlock], types: tuple[str, ...], place: str) -> None:
    """Raises ``RefusedError``."""
    for index, block in enumerate(blocks):
        if block.type not in types:
            raise RefusedError(
                f"is {shown(block.type)}, which {place} can't have",
                where=f".content[{index}].type",
            )


Blocks = Annotated[
    list[ContentBlock],
    FailFast(),
    BeforeValidator(
        as_blocks,
        json_schema_input_type=str | Annotated[list[ContentBlock], Field(max_length=MAX_PARTS)],
    ),
]
