"""Tools of a response, and which of them may be called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from deployments.http.errors import shown
from deployments.protocol import unsupported
from deployments.protocol.responses.kinds import parse_as, parse_one_of
from deployments.protocol.strict import RefusedError, StrictModel
from deployments.protocol.tools import (
    KIND_PATTERN,
    MAX_TOOLS,
    NAME,
    NAME_PATTERN,
    Parameters,
    checked_tools,
)

SEPARATOR = "__"
"""Between the name of a namespace and that of a tool in it, for models: they know flat names."""


class FunctionTool(StrictModel):
    unsupported: ClassVar = unsupported.RESPONSES_TOOL_FIELDS

    type: Literal["function"] = Field(description='"function"')
    name: str = Field(pattern=NAME_PATTERN, description=NAME)
    description: str | None = Field(None, description="a string")
    strict: bool = Field(False, description="a boolean")
    parameters: Parameters = Field({}, description="a JSON schema of an object")

    def as_json(self) -> dict[str, Any]:
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }


class InputFormat(StrictModel):
    type: Literal["text", "grammar"] = Field(description='"text" or "grammar"')
    syntax: Literal["regex"] | None = Field(
        None,
        description='"regex": a grammar of another kind can\'t be enforced in the arguments of a '
        "call",
    )
    definition: str | None = Field(None, min_length=1, description="a regular expression")

    @model_validator(mode="after")
    def _grammar_goes_with_its_type(self) -> Self:
        for name, value in (("syntax", self.syntax), ("definition", self.definition)):
            if (self.type == "grammar") != (value is not None):
                raise RefusedError(
                    'is required with type "grammar", and allowed with no other',
                    where=f".{name}",
                )
        return self

    def as_json(self) -> dict[str, Any]:
        if self.type == "text":
            return {"type": "text"}
        return {"type": "grammar", "syntax": self.syntax, "definition": self.definition}


class CustomTool(StrictModel):
    """Its input is text; to the model it is a function with one parameter."""

    unsupported: ClassVar = unsupported.RESPONSES_TOOL_FIELDS

    type: Literal["custom"] = Field(description='"custom"')
    name: str = Field(pattern=NAME_PATTERN, description=NAME)
    description: str | None = Field(None, description="a string")
    format: InputFormat = Field(InputFormat(type="text"), description="an object")

    def as_json(self) -> dict[str, Any]:
        told = {"type": "custom", "name": self.name, "format": self.format.as_json()}
        return told | ({"description": self.description} if self.description is not None else {})

    @property
    def strict(self) -> bool:
        return self.format.type == "grammar"

    @property
    def parameters(self) -> dict[str, Any]:
        text: dict[str, Any] = {"type": "string"}
        if self.format.definition is not None:
            text["pattern"] = f"^(?:{self.format.definition})$"
        return {
            "type": "object",
            "properties": {"input": text},
            "required": ["input"],
            "additionalProperties": False,
        }


class HostedTool(StrictModel):
    """A kind that its vendor runs, and nobody here can: the model is not told of it."""

    type: str = Field(pattern=KIND_PATTERN, description="a kind of tool")


OwnTool = FunctionTool | CustomTool
_OWN: Mapping[str, type[OwnTool]] = {"function": FunctionTool, "custom": CustomTool}


def _parse_own(value: Any) -> tuple[OwnTool, ...]:
    if not isinstance(value, list):
        raise RefusedError(f"must be an array of functions and custom tools, not {shown(value)}")
    return tuple(parse_one_of(_OWN, tool, f"[{i}]") for i, tool in enumerate(value))


class NamespaceTool(StrictModel):
    type: Literal["namespace"] = Field(description='"namespace"')
    name: str = Field(pattern=NAME_PATTERN, description=NAME)
    description: str = Field("", description="a string")
    tools: Annotated[
        tuple[OwnTool, ...],
        PlainValidator(_parse_own, json_schema_input_type=list[FunctionTool | CustomTool]),
    ] = Field(description="an array of functions and custom tools")

    def as_json(self) -> dict[str, Any]:
        return {
            "type": "namespace",
            "name": self.name,
            "description": self.description,
            "tools": [tool.as_json() for tool in self.tools],
        }


Tool = FunctionTool | CustomTool | NamespaceTool | HostedTool


def _parse_tools(value: Any) -> tuple[Tool, ...]:
    if not isinstance(value, list):
        raise RefusedError(f"must be an array of at most {MAX_TOOLS} tools, not {shown(value)}")
    if len(value) > MAX_TOOLS:
        raise RefusedError(f"must have at most {MAX_TOOLS} tools, not {len(value)}")
    return tuple(_parse_tool(tool, f"[{i}]") for i, tool in enumerate(checked_tools(value)))


def _parse_tool(value: Any, where: str) -> Tool:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "namespace":
        return parse_as(NamespaceTool, value, where)
    if kind in [*_OWN]:
        return parse_one_of(_OWN, value, where)
    # Its other fields are for whoever runs it.
    hosted = {"type": kind} if isinstance(value, dict) and kind is not None else value
    return parse_as(HostedTool, hosted, where)


ToolsField = Annotated[
    tuple[Tool, ...],
    PlainValidator(
        _parse_tools, json_schema_input_type=list[FunctionTool | CustomTool | NamespaceTool]
    ),
]


@dataclass(frozen=True)
class CallableTool:
    """A tool as the model knows it."""

    tool: OwnTool
    where: str
    """In the request."""
    namespace: NamespaceTool | None = None

    @property
    def name(self) -> str:
        return flat_name(self.tool.name, self.namespace.name if self.namespace else None)

    @property
    def description(self) -> str | None:
        told = (self.namespace.description if self.namespace else None, self.tool.description)
        return "\n\n".join(filter(None, told)) or None


def flat_name(name: str, namespace: str | None) -> str:
    return name if namespace is None else f"{namespace}{SEPARATOR}{name}"


def callables(tools: tuple[Tool, ...]) -> Iterator[CallableTool]:
    for index, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            for inner, one in enumerate(tool.tools):
                yield CallableTool(one, f"tools[{index}].tools[{inner}]", tool)
        elif not isinstance(tool, HostedTool):
            yield CallableTool(tool, f"tools[{index}]")


CHOICE = (
    '"none", "auto", "required", {"type": "function" or "custom", "name": …} or '
    '{"type": "allowed_tools", "mode": …, "tools": […]}'
)


def check_choice(value: Any) -> Any:
    match value:
        case "none" | "auto" | "required":
            return value
        case {"type": "allowed_tools", "mode": "auto" | "required", "tools": list(tools), **rest}:
            if not rest and tools:
                for index, tool in enumerate(tools):
                    _check_named(tool, f".tools[{index}]")
                return value
        case {"type": "function" | "custom"}:
            _check_named(value, "")
            return value
        case {"type": str(kind)} if kind != "allowed_tools":
            raise RefusedError(f"names {shown(kind)}, a kind of tool that can't be run here")
    raise RefusedError(f"must be {CHOICE}, not {shown(value)}")


def _check_named(tool: Any, where: str) -> None:
    match tool:
        case {"type": "function" | "custom", "name": str(), **rest} if not (
            rest.keys() - {"namespace"}
        ) and isinstance(rest.get("namespace"), str | None):
            return
    raise RefusedError(
        f'must be {{"type": "function" or "custom", "name": …}}, not {shown(tool)}', where=where
    )
