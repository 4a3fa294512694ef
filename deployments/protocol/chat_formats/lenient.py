"""Schemas of tools that are not strict, without what no grammar could hold a call to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_LOOK_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9]")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_DATA = frozenset({"const", "default", "enum", "examples"})


def lenient(schema: Any) -> Any:
    """``schema`` without types that are none, types that no member of its ``enum`` has, patterns
    that look around, and patterns of members beside a list of these."""
    if isinstance(schema, list):
        return [lenient(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "type":
            value = _types(value, schema.get("enum"))
            if not value:
                continue
        elif keyword == "pattern" and isinstance(value, str) and _LOOK_AROUND.search(value):
            continue
        elif keyword in _NAMED and isinstance(value, Mapping):
            if keyword == "patternProperties" and schema.get("properties"):
                # Together they may leave nothing that can follow a member.
                continue
            value = {
                name: lenient(one)
                for name, one in value.items()
                if keyword != "patternProperties" or not _LOOK_AROUND.search(name)
            }
        elif keyword not in _DATA:
            value = lenient(value)
        kept[keyword] = value
    return kept


def _types(value: Any, choices: Any) -> Any:
    names = value if isinstance(value, list) else [value]
    known = [name for name in names if isinstance(name, str) and name in _TYPES]
    if isinstance(choices, list):
        known = [name for name in known if any(_is_of(one, name) for one in choices)]
    return known if isinstance(value, list) else "".join(known)


def _is_of(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
