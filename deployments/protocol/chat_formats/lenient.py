"""Schemas of tools as they were meant, and as far as a grammar can be made of them.

Places at which something is left out are reported: any value may stand there. What a compilation
shows, such as a pattern that is no regular expression, is left to the backend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from deployments.protocol.chat_formats.schema import required_in, steps_of, target_of

Path = tuple[str, ...]
"""Names and numbers of members, from the parameters down."""
Report = Callable[[Path], None]

MAX_LEVELS = 64
"""Of schemas below each other, references followed: what reads them recurses."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}
_NAMED = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_LISTED = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_SINGLE = frozenset({"additionalItems", "additionalProperties", "items"})
_READ = _NAMED | _LISTED | _SINGLE | {"$ref", "enum", "required", "type"}
_GATHERED = frozenset({"$anchor", "$defs", "$id", "additionalItems", "definitions", "id"})
"""Keywords that mean nothing once all that is referred to has been gathered."""


def well_formed(schema: Any, report: Report, path: Path = ()) -> Any:
    """``schema`` with schemas, names and types alone where these should be; types in lower case."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping):
        report(path)
        return {}
    kept = {}
    for keyword, value in schema.items():
        inner = (*path, keyword)
        read = _read(keyword, value, report, inner)
        if read is None and keyword in _READ:
            report(inner)
        else:
            kept[keyword] = read
    if "properties" in schema.keys() - kept.keys():
        kept["additionalProperties"] = True
        kept.pop("required", None)
    return kept


def _read(keyword: str, value: Any, report: Report, path: Path) -> Any:
    """None: it is of no use."""
    read = _of_schemas(keyword, value, lambda one, inner: well_formed(one, report, inner), path)
    if read is not None:
        return read
    texts = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
    match keyword:
        case "$ref":
            return value if texts and isinstance(value, str) else None
        case "enum":
            return value if isinstance(value, list) and value else None
        case "required" if isinstance(value, list):
            names = texts
        case "type":
            names = [one.lower() for one in texts if one.lower() in _TYPES]
            if not names or isinstance(value, str):
                return names[0] if names else None
        case _:
            return None if keyword in _READ else value
    if len(names) < len(value):
        report(path)
    return names


def _of_schemas(keyword: str, value: Any, read: Callable[[Any, Path], Any], path: Path) -> Any:
    """``value`` with each schema in it as it is ``read``; None: schemas are none of it."""
    match value:
        case Mapping() if keyword in _NAMED:
            return {name: read(one, (*path, name)) for name, one in value.items()}
        case [_, *_] if keyword in _LISTED:
            return [read(one, (*path, str(number))) for number, one in enumerate(value)]
        case bool() | Mapping() if keyword in _SINGLE:
            return read(value, path)
    return None


def enforceable(schema: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """``schema``, which is well formed, with all that it refers to in ``$defs``, and without what
    refers to nothing, or to what it stands in and can't do without."""
    definitions = _Definitions(schema, report)
    gathered: dict[str, Any] = definitions.gather(schema, (), 0, ())
    return {**gathered, "$defs": definitions.by_name} if definitions.by_name else gathered


class _Definitions:
    def __init__(self, root: Mapping[str, Any], report: Report) -> None:
        self.by_name: dict[str, Any] = {}
        self._root = root
        self._report = report
        self._names: dict[Path, str] = {}

    def gather(self, schema: Any, path: Path, level: int, around: tuple[str, ...]) -> Any:
        """``around``: definitions that each value of ``schema`` is needed in."""
        if not isinstance(schema, Mapping):
            return schema
        if isinstance(first := schema.get("items"), list):
            schema = {**schema, "prefixItems": first, "items": schema.get("additionalItems", True)}
        needed = [("properties", name) for name in required_in(schema)]

        def inner(one: Any, place: Path) -> Any:
            step = place[len(path) :]
            is_needed = step in needed or step[0] == "allOf"
            return self.gather(one, place, level + 1, around if is_needed else ())

        kept: dict[str, Any] = {}
        for keyword, value in schema.items():
            place = (*path, keyword)
            match keyword:
                case _ if keyword in _GATHERED:
                    continue
                case "$ref":
                    value = self._reference(value, level, around)
                case "type":
                    value = _fitting(value, schema.get("enum"))
                case "patternProperties" if schema.get("properties"):
                    # Together they may leave nothing that can follow a member.
                    value = None
                case "oneOf" if "anyOf" not in schema:
                    # That its schemas exclude each other takes long to see, and has no grammar.
                    keyword = "anyOf"
            if value is None and keyword in _READ:
                self._report(place)
            else:
                read = _of_schemas(keyword, value, inner, place)
                kept[keyword] = value if read is None else read
        return kept

    def _reference(self, reference: str, level: int, around: tuple[str, ...]) -> str | None:
        """To the same in ``$defs``; None: it is nothing, too deep, or can't be there."""
        path = tuple(steps_of(reference))
        if path not in self._names:
            target = target_of(self._root, reference)
            if level >= MAX_LEVELS or not isinstance(target, (bool, Mapping)):
                return None
            name = re.sub(r"\W", "_", path[-1] if path else "whole")
            while name in self._names.values():
                name += "_"
            self._names[path] = name
            target = well_formed(target, self._report, path)
            self.by_name[name] = self.gather(target, path, level + 1, (*around, name))
        name = self._names[path]
        return None if name in around else f"#/$defs/{name}"


def _fitting(value: Any, choices: Any) -> Any:
    """The types that some member of its ``enum`` has; None: no type has."""
    if not isinstance(choices, list):
        return value
    names = value if isinstance(value, list) else [value]
    fitting = [name for name in names if any(_is_of(one, name) for one in choices)]
    return (fitting if isinstance(value, list) else value) if fitting else None


def _is_of(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
