"""Models that refuse what they don't know, and their errors in a client's words.

The description of each field says what is allowed: it completes "<field> must be ...".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticUseDefault

from deployments.http.errors import ApiError, cut, shown
from deployments.protocol.background import end_if_left
from deployments.protocol.dropped import drop
from deployments.protocol.field_rules import FieldRules, Refused, WithoutEffect, without_effect


class RefusedError(ValueError):
    """Completes "<field> ..."; ``where`` is the path of the field below the validated value, and
    ``lead`` stands before it."""

    def __init__(self, message: str, *, where: str = "", lead: str = "") -> None:
        super().__init__(message)
        self.where = where
        self.lead = lead


def _check_unserved(rule: WithoutEffect | Refused, name: str, value: Any) -> None:
    if isinstance(rule, WithoutEffect):
        if not rule.knows(value):
            drop(name)
    elif problem := rule.problem(value):
        raise RefusedError(problem, where=f".{name}")


def _or_dropped(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    try:
        return handler(value)
    except ValidationError:
        drop(str(info.field_name))
        raise PydanticUseDefault from None


def hint(known: Any) -> WrapValidator:
    """``HINT``, of which the document shows the type ``known``."""
    return WrapValidator(_or_dropped, json_schema_input_type=known | Any)


HINT = WrapValidator(_or_dropped, json_schema_input_type=Any)
"""Of a field that changes no answer: a value that nobody here knows is as if it were left out."""


class StrictModel(BaseModel):
    """No coercion, no unknown field, no NaN or infinity; null means absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    unsupported: ClassVar[FieldRules] = {}
    """Fields of the API that nothing stands behind."""
    only_checked: ClassVar[Mapping[str, str]] = {}
    """Declared fields that change no answer either, and why one without them is as right."""

    @classmethod
    def wire_fields(cls) -> dict[str, FieldInfo]:
        """By the names that clients know."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}

    @model_validator(mode="before")
    @classmethod
    def _only_what_is_served(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        end_if_left()
        fields = cls.wire_fields()
        served, unknown = {}, False
        for name, value in data.items():
            if name in cls.unsupported:
                if value is not None:
                    _check_unserved(cls.unsupported[name], name, value)
            elif name in fields:
                if value is not None:
                    served[name] = value
            elif not unknown:
                # One is told; a body of a million would cost a million errors.
                served[name], unknown = value, True
        return served

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """With null for what may be absent, and the fields that are accepted but not served."""
        schema = handler(core_schema)
        described = handler.resolve_ref_schema(schema)
        properties = described["properties"]
        for name in properties.keys() - set(described.get("required", ())):
            of_field = properties[name]
            if {"type": "null"} not in of_field.get("anyOf", ()):
                told = {"description": of_field.pop("description", "")}
                properties[name] = {"anyOf": [of_field, {"type": "null"}], **told}
        for name, why in cls.only_checked.items():
            properties[name]["description"] = without_effect(properties[name]["description"], why)
        for name, rule in cls.unsupported.items():
            properties[name] = rule.json_schema()
        cls.complete_schema(described)
        return schema

    @classmethod
    def complete_schema(cls, described: dict[str, Any]) -> None:
        """Add what fields say together to the JSON schema ``described``."""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Raises ``ApiError`` 400 that names the first field at fault and what is allowed."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise _told(cls, error) from None


def _told(model: type[StrictModel], error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    kind, value, location = first["type"], first["input"], first["loc"]
    cause = first.get("ctx", {}).get("error")
    path = _path(location)
    owner_path, owner, field = _owner(model, location)
    allowed = field.description if field else None
    if isinstance(cause, RefusedError):
        path = f"{path}{cause.where}".removeprefix(".")
        message = f"{cause.lead}{path} {cause}."
    elif kind == "extra_forbidden":
        close = get_close_matches(cut(str(location[-1])), owner.wire_fields(), 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        message = f"{path} is not a known field.{hint}"
    elif kind == "missing":
        message = f"{path} is required: {allowed}."
    elif kind == "model_type":
        message = f"{path} must be an object, not {shown(value)}."
    elif path == owner_path:
        message = f"{path} must be {allowed}, not {shown(value)}."
    else:
        message = f"{path} is {shown(value)}, but {owner_path} must be {allowed}."
    return ApiError(400, message, param=path)


def _path(location: tuple[int | str, ...]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{cut(part)}" for part in location)
    return "".join(part for part in parts if part != ".[key]").removeprefix(".")


def _owner(
    model: type[StrictModel], location: tuple[int | str, ...]
) -> tuple[str, type[StrictModel], FieldInfo | None]:
    """The innermost declared field on the way to ``location``, its path, and the model around."""
    path, owner, field = "", model, None
    inner: type[StrictModel] | None = model
    for depth, part in enumerate(location, start=1):
        if inner is None or isinstance(part, int):
            continue
        owner = inner
        if part not in (fields := owner.wire_fields()):
            break
        field = fields[part]
        path = _path(location[:depth])
        inner = next(models_in(field.annotation), None)
    return path, owner, field


def models_in(annotation: Any) -> Iterator[type[StrictModel]]:
    """Those that a field of this type holds."""
    if isinstance(annotation, type) and issubclass(annotation, StrictModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)
