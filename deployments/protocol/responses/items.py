"""The items of an input: what was said, called, answered and thought so far."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from deployments.http.errors import cut, shown
from deployments.protocol import unsupported
from deployments.protocol.carried_thought import checked_thought, read_carried
from deployments.protocol.dropped import drop
from deployments.protocol.left_out import refuse_image, without_unreadable
from deployments.protocol.messages import MAX_PARTS
from deployments.protocol.responses.kinds import parse_one_of
from deployments.protocol.strict import RefusedError, StrictModel
from deployments.protocol.tools import NAME, NAME_PATTERN, parse_arguments

MAX_ITEMS = 4096
CONTENT = "a string or an array of parts that are text"
CALL_ID = "a string of 1 to 256 characters"
_HOSTED = re.compile(r"^([a-z_]+_(call|call_output|output)|mcp_[a-z_]+)$")
_UNREAD_SUMMARY = "a model is told what was thought, or nothing"


class ContentPart(StrictModel):
    unsupported: ClassVar = unsupported.RESPONSES_TEXT_PART_FIELDS

    type: Literal["input_text", "output_text"] = Field(description='"input_text" or "output_text"')
    text: str = Field(description="a string")


class ThoughtPart(StrictModel):
    type: Literal["reasoning_text"] = Field(description='"reasoning_text"')
    text: str = Field(description="a string")


class SummaryPart(StrictModel):
    only_checked: ClassVar = {"text": _UNREAD_SUMMARY}

    type: Literal["summary_text"] = Field(description='"summary_text"')
    text: str = Field(description="a string")


_PARTS: Mapping[str, type[ContentPart]] = {"input_text": ContentPart, "output_text": ContentPart}


def _parse_content(value: Any) -> tuple[str, ...]:
    """The texts of its parts."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise RefusedError(f"must be {CONTENT}, not {shown(value)}")
    if len(value) > MAX_PARTS:
        raise RefusedError(f"must have at most {MAX_PARTS} parts, not {len(value)}")
    return tuple(_parse_part(part, f"[{i}]").text for i, part in enumerate(value))


def _parse_part(value: Any, where: str) -> ContentPart:
    match value:
        case {"type": "refusal", "refusal": str(said)}:
            value = {"type": "output_text", "text": said}
    try:
        refuse_image(value)
    except RefusedError as error:
        raise RefusedError(str(error), where=where + error.where, lead=error.lead) from None
    return parse_one_of(_PARTS, value, where)


Content = Annotated[
    tuple[str, ...], PlainValidator(_parse_content, json_schema_input_type=str | list[ContentPart])
]


class Item(StrictModel):
    """What all kinds have: names that a server gave them, which no template writes."""

    unsupported: ClassVar = unsupported.RESPONSES_ITEM_FIELDS


class MessageItem(Item):
    type: Literal["message"] = Field("message", description='"message"')
    role: Literal["user", "assistant", "system", "developer"] = Field(
        description='"user", "assistant", "system" or "developer"'
    )
    content: Content = Field(description=CONTENT)

    @property
    def text(self) -> str:
        return "\n".join(self.content)


def _checked_arguments(value: Any) -> str:
    parse_arguments(value)
    return str(value)


class FunctionCallItem(Item):
    unsupported: ClassVar = unsupported.RESPONSES_CALL_FIELDS

    type: Literal["function_call"] = Field(description='"function_call"')
    call_id: str = Field(min_length=1, max_length=256, description=CALL_ID)
    name: str = Field(pattern=NAME_PATTERN, description=NAME)
    namespace: str | None = Field(None, pattern=NAME_PATTERN, description=NAME)
    arguments: Annotated[str, BeforeValidator(_checked_arguments, json_schema_input_type=str)] = (
        Field(description="a JSON object, as a string")
    )


class CustomCallItem(Item):
    unsupported: ClassVar = unsupported.RESPONSES_CALL_FIELDS

    type: Literal["custom_tool_call"] = Field(description='"custom_tool_call"')
    call_id: str = Field(min_length=1, max_length=256, description=CALL_ID)
    name: str = Field(pattern=NAME_PATTERN, description=NAME)
    namespace: str | None = Field(None, pattern=NAME_PATTERN, description=NAME)
    input: str = Field(description="a string")


def _parse_output(value: Any) -> tuple[str, ...]:
    return _parse_content(without_unreadable(value, "input_text", "output_text"))


class OutputItem(Item):
    """What came of a call."""

    unsupported: ClassVar = unsupported.RESPONSES_OUTPUT_FIELDS

    type: Literal["function_call_output", "custom_tool_call_output"] = Field(
        description='"function_call_output" or "custom_tool_call_output"'
    )
    call_id: str = Field(min_length=1, max_length=256, description=CALL_ID)
    output: Annotated[
        tuple[str, ...],
        PlainValidator(_parse_output, json_schema_input_type=str | list[ContentPart]),
    ] = Field(description=CONTENT)

    @property
    def text(self) -> str:
        return "\n".join(self.output)


class ReasoningItem(Item):
    only_checked: ClassVar = {"summary": _UNREAD_SUMMARY}

    type: Literal["reasoning"] = Field(description='"reasoning"')
    summary: list[SummaryPart] = Field([], description='an array of {"type": "summary_text"} parts')
    content: list[ThoughtPart] = Field(
        [], description='an array of {"type": "reasoning_text"} parts'
    )
    encrypted_content: Annotated[str, BeforeValidator(checked_thought)] | None = Field(
        None, description="a string that this server gave, or another one: then it is not read"
    )

    @property
    def text(self) -> str:
        said = "\n".join(part.text for part in self.content)
        return said or read_carried(self.encrypted_content or "")


class ItemReference(StrictModel):
    """An item of a response that is kept."""

    type: Literal["item_reference"] = Field("item_reference", description='"item_reference"')
    id: str = Field(min_length=1, max_length=256, description="an item's id, as an answer had it")


class HostedItem(StrictModel):
    """Of a tool that its vendor ran: the model is told of neither."""

    type: str = Field(pattern=_HOSTED.pattern, description="a kind of item")


OwnItem = MessageItem | FunctionCallItem | CustomCallItem | OutputItem | ReasoningItem
InputItem = OwnItem | HostedItem

ITEMS: Mapping[str, type[InputItem | ItemReference]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": OutputItem,
    "custom_tool_call": CustomCallItem,
    "custom_tool_call_output": OutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
}


def parse_input(value: Any) -> tuple[InputItem | ItemReference, ...]:
    """Raises ``RefusedError`` that says which item is at fault."""
    if isinstance(value, str):
        return (MessageItem.model_validate({"role": "user", "content": value}),)
    if not isinstance(value, list) or not value:
        raise RefusedError(f"must be a string or a non-empty array of items, not {shown(value)}")
    if len(value) > MAX_ITEMS:
        raise RefusedError(f"must have at most {MAX_ITEMS} items, not {len(value)}")
    return tuple(parse_item(item, f"[{i}]") for i, item in enumerate(value))


def parse_item(value: Any, where: str) -> InputItem | ItemReference:
    """Raises ``RefusedError``."""
    # A reference may come without its type, as messages do.
    is_reference = isinstance(value, dict) and value.keys() == {"id"}
    default = "item_reference" if is_reference else "message"
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in ITEMS and _HOSTED.match(kind):
        drop(cut(kind))
        return HostedItem(type=kind)
    return parse_one_of(ITEMS, value, where, default=default)
