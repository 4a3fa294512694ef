"""The tools of a request, and which of them may be called."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deployments.http.errors import shown
from deployments.protocol.anthropic import rules
from deployments.protocol.strict import RefusedError, StrictModel
from deployments.protocol.tools import (
    KIND,
    KIND_PATTERN,
    NAME,
    NAME_PATTERN,
    Parameters,
    checked_tools,
)

OWN_KIND = "custom"


class MessagesTool(StrictModel):
    """The client's, or one of those that their vendor knows by ``type``, and no model here does."""

    unsupported: ClassVar = rules.TOOL_FIELDS

    type: str = Field(OWN_KIND, pattern=KIND_PATTERN, description=f'"{OWN_KIND}", or {KIND}')
    name: str | None = Field(None, pattern=NAME_PATTERN, description=NAME)
    description: str | None = Field(None, description="a string")
    strict: bool = Field(False, description="a boolean")
    input_schema: Parameters | None = Field(None, description="a JSON schema of an object")
    defer_loading: bool = Field(
        False,
        description="a boolean; true: the model is told of it once a tool_reference has named it",
    )

    @model_validator(mode="before")
    @classmethod
    def _only_its_kind_matters(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        return {"type": kind} if isinstance(kind, str) and kind != OWN_KIND else data

    @model_validator(mode="after")
    def _has_what_is_told_of_it(self) -> Self:
        for name in ("name",) if self.defer_loading else ("name", "input_schema"):
            if self.type == OWN_KIND and getattr(self, name) is None:
                description = type(self).model_fields[name].description
                raise RefusedError(f"is required: {description}", where=f".{name}")
        return self

    @property
    def searches(self) -> bool:
        """Whether it would find deferred tools, if its vendor ran it here."""
        return self.type.startswith("tool_search_tool_")

    def for_chat(self) -> dict[str, Any]:
        if self.type != OWN_KIND:
            return {"type": self.type}
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.input_schema,
            "strict": self.strict,
        }
        return {"type": "function", "function": function}


class MessagesToolChoice(StrictModel):
    type: Literal["auto", "any", "tool", "none"] = Field(
        description='"auto", "any", "tool" or "none"'
    )
    name: str | None = Field(None, description="a string, the name of a tool")
    disable_parallel_tool_use: bool = Field(False, description="a boolean")

    @model_validator(mode="after")
    def _names_a_tool(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise RefusedError(
                'is required with type "tool", and allowed with no other', where=".name"
            )
        return self

    def for_chat(self) -> dict[str, Any] | str:
        if self.name is not None:
            return {"type": "function", "function": {"name": self.name}}
        return {"any": "required"}.get(self.type, self.type)


MessagesTools = Annotated[list[MessagesTool], BeforeValidator(checked_tools)]


def check_tools(tools: list[MessagesTool], choice: MessagesToolChoice | None) -> None:
    """Raises ``RefusedError``."""
    names = [tool.name for tool in tools if tool.name is not None]
    for index, tool in enumerate(tools):
        if tool.name is not None and tool.name in [one.name for one in tools[:index]]:
            raise RefusedError(
                f"is {shown(tool.name)}, as another tool's", where=f".tools[{index}].name"
            )
    if choice is None:
        return
    if choice.type == "any" and not names:
        raise RefusedError("requires a call, but there are no tools", where=".tool_choice.type")
    if choice.name is not None and choice.name not in names:
        raise RefusedError(
            f"is {shown(choice.name)}, which is none of the client's tools",
            where=".tool_choice.name",
        )
