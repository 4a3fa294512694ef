"""Tools of a chat, and the calls of them in its messages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    model_validator,
)
from pydantic_core import from_json

from deployments.backend.written import read_number
from deployments.http.errors import shown
from deployments.protocol import unsupported
from deployments.protocol.chat_formats import tool as called
from deployments.protocol.chat_formats.lenient import Path, enforceable, well_formed
from deployments.protocol.dropped import drop
from deployments.protocol.json_body import is_deeper
from deployments.protocol.strict import RefusedError, StrictModel
from deployments.protocol.structured_output import MAX_GRAMMAR_CHARS, MAX_SCHEMA_DEPTH

MAX_TOOLS = 256
MAX_CALLS = 256
NAME_PATTERN = r"^[a-zA-Z0-9_.:-]{1,128}$"
NAME = "1 to 128 letters, digits or characters of _.:-"
KIND_PATTERN = r"^[a-zA-Z0-9_.:-]{1,64}$"
KIND = "a kind of tool that its vendor runs, 1 to 64 letters, digits or characters of _.:-"
_OWN_KINDS = ("function", "custom")
"""Whose calls are for the client to answer."""


def checked_parameters(value: Any, info: ValidationInfo) -> Any:
    """``strict`` and ``name`` were checked before."""
    if isinstance(value, dict):
        if is_deeper(value, MAX_SCHEMA_DEPTH):
            raise RefusedError(f"must nest at most {MAX_SCHEMA_DEPTH} levels deep")
    elif not info.data.get("strict"):
        drop(f"{info.data.get('name')}.{info.field_name}")
        return {}
    return value


Parameters = Annotated[dict[str, Any], BeforeValidator(checked_parameters)]


class Function(StrictModel):
    unsupported: ClassVar = unsupported.FUNCTION_FIELDS

    name: str = Field(pattern=NAME_PATTERN, description=NAME)
    description: str | None = Field(None, description="a string")
    strict: bool = Field(False, description="a boolean")
    parameters: Parameters = Field({}, description="a JSON schema of an object")

    @model_validator(mode="after")
    def _strict_parameters_are_a_schema(self) -> Self:
        for path in self._meant[1] if self.strict else ():
            value: Any = self.parameters
            for step in path:
                value = value[int(step) if isinstance(value, list) else step]
            raise RefusedError(
                f"must be a JSON schema of an object: {'.'.join(path)} is {shown(value)}",
                where=".parameters",
            )
        return self

    @cached_property
    def _meant(self) -> tuple[dict[str, Any], list[Path]]:
        """The parameters as they were meant, and what is left out of them."""
        left_out: list[Path] = []
        schema = well_formed(self.parameters, left_out.append)
        if schema.get("type", "object") not in ("object", ["object"]):
            schema = {**schema, "type": "object"}
            left_out.append(("type",))
        return schema, left_out

    def as_called(self, param: str = "parameters") -> called.Tool:
        """As grammars and readers of calls see it; ``param``: the field that its schema came in."""
        schema, left_out = self._meant[0], [*self._meant[1]]
        if not self.strict:
            schema = enforceable(schema, left_out.append)
        return called.Tool(self.name, schema, self.strict, param, tuple(left_out))

    def for_template(self) -> dict[str, Any]:
        parameters = self._meant[0] or {"type": "object", "properties": {}}
        # The order that models were trained on, whatever the client's.
        described = {"name": self.name, "description": self.description, "parameters": parameters}
        if self.description is None:
            del described["description"]
        return {"type": "function", "function": described}


class Tool(StrictModel):
    """A function of the client's, or a kind of tool that its vendor runs and nobody here can."""

    unsupported: ClassVar = unsupported.TOOL_FIELDS

    type: str = Field(pattern=KIND_PATTERN, description=f'"function", or {KIND}')
    function: Function | None = Field(None, description="an object")

    @model_validator(mode="before")
    @classmethod
    def _only_its_kind_matters(cls, data: Any) -> Any:
        return {"type": data["type"]} if _is_hosted(data) else data

    @model_validator(mode="after")
    def _has_a_function(self) -> Self:
        if self.type != "function" and (self.function or self.type in _OWN_KINDS):
            raise RefusedError(f'must be "function", not {shown(self.type)}', where=".type")
        if self.type == "function" and self.function is None:
            raise RefusedError("is required: an object", where=".function")
        return self

    @classmethod
    def complete_schema(cls, described: dict[str, Any]) -> None:
        hosted = {"type": "string", "pattern": KIND_PATTERN, "not": {"enum": [*_OWN_KINDS]}}
        function = {
            "properties": {**described["properties"]},
            "additionalProperties": described.pop("additionalProperties"),
            "required": ["type", "function"],
        }
        # What else a hosted tool has nobody looks at.
        described["properties"] = {name: described["properties"][name] for name in cls.model_fields}
        function["properties"] |= {"type": {"const": "function"}}
        absent = {"properties": {"type": hosted, "function": {"type": "null"}}}
        described["anyOf"] = [function, {**absent, "required": ["type"]}]


def _is_hosted(data: Any) -> bool:
    if not isinstance(data, dict) or data.get("function") is not None:
        return False
    return isinstance(kind := data.get("type"), str) and kind not in _OWN_KINDS


def checked_tools(value: Any) -> Any:
    """Before each is looked at."""
    if isinstance(value, list) and len(value) <= MAX_TOOLS:
        size = len(json.dumps(value))
        if size > MAX_GRAMMAR_CHARS:
            raise RefusedError(f"must have at most {MAX_GRAMMAR_CHARS} characters, not {size}")
    return value


Tools = Annotated[list[Tool], BeforeValidator(checked_tools)]
Functions = Annotated[list[Function], BeforeValidator(checked_tools)]


@dataclass(frozen=True)
class ToolChoice:
    """Which tools may be called, and whether one has to be."""

    required: bool = False
    names: tuple[str, ...] | None = None
    """None: any."""
    forbidden: bool = False


def _parse_choice(value: Any) -> ToolChoice:
    match value:
        case "auto":
            return ToolChoice()
        case "required":
            return ToolChoice(required=True)
        case "none":
            return ToolChoice(forbidden=True)
        case {"type": "function", "function": {"name": str(name), **more}, **rest} if not (
            more or rest
        ):
            return ToolChoice(required=True, names=(name,))
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools), **more},
            **rest,
        } if not (more or rest):
            return ToolChoice(required=mode == "required", names=tuple(map(_named, tools)))
    raise RefusedError(f"must be {CHOICE}, not {shown(value)}")


def _named(tool: Any) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    raise RefusedError(
        f'.allowed_tools.tools must have {{"type": "function", "function": {{"name": …}}}}, '
        f"not {shown(tool)}"
    )


CHOICE = (
    '"none", "auto", "required", {"type": "function", "function": {"name": …}} or '
    '{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}'
)
ToolChoiceField = Annotated[
    ToolChoice,
    PlainValidator(
        _parse_choice,
        json_schema_input_type=Literal["none", "auto", "required"] | dict[str, Any],
    ),
]


class CalledFunction(StrictModel):
    name: str = Field(pattern=NAME_PATTERN, description=NAME)
    arguments: Annotated[
        dict[str, Any],
        BeforeValidator(lambda value: parse_arguments(value), json_schema_input_type=str),
    ] = Field(description="a JSON object, as a string")


def parse_arguments(value: Any) -> Any:
    """Templates want what clients send as a string. Of a call that was cut short what had come."""
    if not isinstance(value, str):
        raise RefusedError(f"must be a JSON object, as a string, not {shown(value)}")
    try:
        arguments = _decoded(value or "{}")
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"must be a JSON object, as a string: {error}") from None
    if not isinstance(arguments, dict) or is_deeper(arguments, MAX_SCHEMA_DEPTH):
        raise RefusedError(
            f"must be a JSON object, as a string, of at most {MAX_SCHEMA_DEPTH} levels, not "
            f"{shown(value)}"
        )
    return arguments


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_float=read_number)
    except json.JSONDecodeError:
        return from_json(text, allow_partial="trailing-strings")


class ToolCall(StrictModel):
    """Of an earlier answer."""

    unsupported: ClassVar = unsupported.TOOL_CALL_FIELDS

    id: str = Field(min_length=1, max_length=256, description="a string of at most 256 characters")
    type: Literal["function"] = Field("function", description='"function"')
    function: CalledFunction = Field(description="an object")

    def for_template(self) -> dict[str, Any]:
        called = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": "function", "function": called}
