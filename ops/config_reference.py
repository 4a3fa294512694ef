"""The configuration reference in ``configs/README.md``, written from the settings classes.

``python -m ops.config_reference`` prints it; with ``--write`` it replaces what stands between the
markers there.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import annotated_types
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from deployments.backend import GenerationDefaults
from deployments.settings import AppSettings

DOCUMENT = Path(__file__).resolve().parent.parent / "configs" / "README.md"
BEGIN = "<!-- configuration: begin -->"
END = "<!-- configuration: end -->"

TYPE_NAMES: dict[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "`true` or `false`",
    Path: "path",
    SecretStr: "text",
}


def reference() -> str:
    """One Markdown table for each section under ``args:``."""
    parts = []
    for name, field in AppSettings.model_fields.items():
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, BaseModel)
        parts.append(f"**`{name}`**: {section.__doc__}\n\n" + "\n".join(_table(section)))
    return "\n\n".join(parts) + "\n"


def embed(document: str) -> str:
    """``document`` with the current reference between its markers. Raises ``ValueError``."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the document needs these two lines:\n{BEGIN}\n{END}")
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def _table(section: type[BaseModel]) -> Iterator[str]:
    yield "| key | default | allowed | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, field in section.model_fields.items():
        meaning = " ".join((field.description or "").split())
        yield f"| `{name}` | {_default(field)} | {_allowed(field)} | {meaning} |"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value in ((), {}, GenerationDefaults()):
        return "none"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{value}`"


def _allowed(field: FieldInfo) -> str:
    return _type_name(field.annotation) + "".join(f", {bound}" for bound in _bounds(field))


def _type_name(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(one) for one in arguments if one is not type(None))
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is tuple:
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return "mapping"
    if issubclass(annotation, BaseModel):
        return "mapping of " + ", ".join(f"`{name}`" for name in annotation.model_fields)
    return TYPE_NAMES[annotation]


def _bounds(field: FieldInfo) -> Iterator[str]:
    for limit in field.metadata:
        match limit:
            case annotated_types.Ge(ge=bound):
                yield f"at least {bound}"
            case annotated_types.Gt(gt=bound):
                yield f"more than {_number(bound)}"
            case annotated_types.Le(le=bound):
                yield f"at most {bound}"
            case annotated_types.MinLen():
                yield "not empty"


def _number(bound: Any) -> str:
    return f"{bound:g}"


def main(arguments: list[str]) -> None:
    if arguments == ["--write"]:
        DOCUMENT.write_text(embed(DOCUMENT.read_text()))
    else:
        sys.stdout.write(reference())


if __name__ == "__main__":
    main(sys.argv[1:])
