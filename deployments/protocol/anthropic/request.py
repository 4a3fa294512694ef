"""The body of ``POST /v1/messages``."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import FailFast, Field, model_validator

from deployments.http.errors import shown
from deployments.protocol.anthropic import rules
from deployments.protocol.anthropic.blocks import CONTENT, Blocks, refuse_other_types
from deployments.protocol.anthropic.tools import (
    MessagesToolChoice,
    MessagesTools,
    check_tools,
)
from deployments.protocol.chat import MAX_MESSAGES
from deployments.protocol.common import MAX_STOP_CHARS, MAX_STOP_STRINGS, StopString
from deployments.protocol.dropped import drop
from deployments.protocol.strict import HINT, RefusedError, StrictModel
from deployments.protocol.structured_output import JsonSchema
from deployments.protocol.tools import MAX_TOOLS

MAX_USER_ID_CHARS = 512
_INT32_MAX = 2**31 - 1
_TEXTS = "a string or an array of text blocks"
_EDITS = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")
"""Without them a model is told more, not less."""
_BY_ROLE = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}


class InputMessage(StrictModel):
    unsupported: ClassVar = rules.MESSAGE_FIELDS

    role: Literal["user", "assistant", "system"] = Field(
        description='"user", "assistant" or "system"'
    )
    content: Blocks = Field([], description=CONTENT)
    clear_at: Literal["next_user_message", "never"] | None = Field(
        None, description='"next_user_message" or "never", with role "system"'
    )

    @model_validator(mode="after")
    def _blocks_fit_the_role(self) -> Self:
        if self.role != "system" and "content" not in self.model_fields_set:
            raise RefusedError(f"is required: {CONTENT}", where=".content")
        if self.role != "system" and self.clear_at is not None:
            raise RefusedError('is only allowed with role "system"', where=".clear_at")
        refuse_other_types(self.content, _BY_ROLE[self.role], f"a message of role {self.role}")
        return self

    @classmethod
    def complete_schema(cls, described: dict[str, Any]) -> None:
        others = {
            "role": {"enum": ["user", "assistant"]},
            "content": {"type": ["string", "array"]},
            "clear_at": {"type": "null"},
        }
        described["anyOf"] = [
            {"properties": others, "required": ["content"]},
            {"properties": {"role": {"const": "system"}}},
        ]


class MessagesMetadata(StrictModel):
    user_id: Annotated[str | None, HINT] = Field(
        None,
        max_length=MAX_USER_ID_CHARS,
        description=f"a string of at most {MAX_USER_ID_CHARS} characters",
    )


class ThinkingConfig(StrictModel):
    unsupported: ClassVar = rules.THINKING_FIELDS

    type: Literal["enabled", "adaptive", "between_tools", "disabled"] = Field(
        description='"enabled", "adaptive", "between_tools" or "disabled"'
    )
    budget_tokens: int | None = Field(
        None, ge=1, le=_INT32_MAX, description="an integer of at least 1"
    )
    display: Annotated[Literal["summarized", "updates", "omitted"] | None, HINT] = Field(
        None, description='"summarized", "updates" or "omitted"; nothing is summarized'
    )

    @model_validator(mode="after")
    def _budget_goes_with_its_type(self) -> Self:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise RefusedError(
                'is required with type "enabled", and allowed with no other',
                where=".budget_tokens",
            )
        return self


class OutputFormat(StrictModel):
    type: Literal["json_schema"] = Field(description='"json_schema"')
    json_schema: JsonSchema = Field(alias="schema", description="a JSON schema, an object")


class OutputConfig(StrictModel):
    unsupported: ClassVar = rules.OUTPUT_FIELDS

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description='"low", "medium", "high", "xhigh" or "max"'
    )
    format: OutputFormat | None = Field(None, description="an object")


_NO_EDITS = "edits make room, and here all that was said has room or is refused"


class ContextManagement(StrictModel):
    only_checked: ClassVar = {"edits": _NO_EDITS}

    edits: list[dict[str, Any]] = Field([], max_length=16, description="an array of edits")

    @model_validator(mode="after")
    def _only_known_edits_are_meant(self) -> Self:
        if any(edit.get("type") not in _EDITS for edit in self.edits):
            drop("edits")
        return self


class MessagesRequest(StrictModel):
    unsupported: ClassVar = rules.REQUEST_FIELDS
    only_checked: ClassVar = {"context_management": _NO_EDITS}

    model: str = Field(min_length=1, description="a non-empty string, a model's name")
    max_tokens: int = Field(ge=0, le=_INT32_MAX, description="an integer of at least 0")
    messages: Annotated[list[InputMessage], FailFast()] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        description=f"a non-empty array of at most {MAX_MESSAGES} messages",
    )
    system: Blocks = Field([], description=_TEXTS)
    stream: bool = Field(False, description="a boolean")
    stop_sequences: list[StopString] = Field(
        [],
        max_length=MAX_STOP_STRINGS,
        description=f"an array of at most {MAX_STOP_STRINGS} non-empty strings of at most "
        f"{MAX_STOP_CHARS} characters",
    )
    temperature: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    top_p: float | None = Field(None, gt=0, le=1, description="a number more than 0 and at most 1")
    top_k: int | None = Field(
        None, ge=-1, le=_INT32_MAX, description="an integer of at least -1; 0 and -1 turn it off"
    )
    tools: MessagesTools = Field(
        [], max_length=MAX_TOOLS, description=f"an array of at most {MAX_TOOLS} tools"
    )
    tool_choice: MessagesToolChoice | None = Field(None, description="an object")
    thinking: ThinkingConfig | None = Field(None, description="an object")
    output_config: OutputConfig | None = Field(None, description="an object")
    metadata: Annotated[MessagesMetadata | None, HINT] = Field(None, description="an object")
    context_management: Annotated[ContextManagement | None, HINT] = Field(
        None, description="an object"
    )

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        for index, block in enumerate(self.system):
            if block.type != "text":
                raise RefusedError(
                    f'must be "text", not {shown(block.type)}', where=f".system[{index}].type"
                )
        last = self.messages[-1]
        if last.role == "assistant" and not (last.content and last.content[-1].text):
            raise RefusedError(
                "must end with a text: the answer goes on where a last message of role assistant "
                "ends",
                where=f".messages[{len(self.messages) - 1}].content",
            )
        check_tools(self.tools, self.tool_choice)
        if self.output_format is not None and any(tool.name for tool in self.tools):
            raise RefusedError(
                "can't be combined with tools; leave one of them out",
                where=".output_config.format",
            )
        return self

    @property
    def output_format(self) -> OutputFormat | None:
        return self.output_config.format if self.output_config else None

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.display != "omitted"
