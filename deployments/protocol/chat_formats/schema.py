"""What a JSON schema admits, as far as grammars and readers of calls have to know."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from math import inf
from typing import Any
from urllib.parse import unquote

KINDS = ("string", "number", "boolean", "null", "object", "array")
"""Types of values; an integer is a number."""
NOTES = frozenset(
    {"$comment", "$schema", "default", "deprecated", "description", "examples", "title"}
)
"""Keywords that leave any value."""
_LISTS = ("enum", "const")
_OPTIONS = ("anyOf", "oneOf")


class Schemas:
    """The schemas in ``root``, which they may refer to."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[int, tuple[Any, list[dict[str, Any]]]] = {}

    def branches(self, schema: Any) -> list[dict[str, Any]]:
        """Schemas, one of which a value must match, each with one ``type`` or a list of values.
        One that has neither can't be taken apart."""
        # The schema is kept with its branches, so that no other one gets its id.
        if id(schema) not in self._known:
            self._known[id(schema)] = schema, [*self._branches(schema, ())]
        return self._known[id(schema)][1]

    def _branches(self, schema: Any, seen: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        if schema is False:
            return
        one = dict(schema) if isinstance(schema, Mapping) else {}
        if isinstance(reference := one.get("$ref"), str):
            target = target_of(self._root, reference)
            if reference not in seen and target is not None:
                yield from self._of_parts(one, "$ref", [[target]], (*seen, reference))
        elif isinstance(parts := one.get("allOf"), list):
            yield from self._of_parts(one, "allOf", [parts], seen)
        elif keyword := next((name for name in _OPTIONS if isinstance(one.get(name), list)), None):
            yield from self._of_parts(one, keyword, [[part] for part in one[keyword]], seen)
        elif one.keys() & {*_LISTS}:
            yield one
        else:
            for kind in _kinds(one):
                yield {**one, "type": kind}

    def _of_parts(
        self, schema: dict[str, Any], keyword: str, options: list[list[Any]], seen: tuple[str, ...]
    ) -> Iterator[dict[str, Any]]:
        """Branches of ``schema`` with the parts of one of ``options`` in place of ``keyword``."""
        rest = {name: value for name, value in schema.items() if name != keyword}
        for parts in options:
            if any(part is False for part in parts):
                continue
            merged = _merged([*parts, rest])
            if merged is None:
                yield {**rest, keyword: parts if keyword != "$ref" else schema["$ref"]}
            else:
                yield from self._branches(merged, seen)

    def admits(self, schema: Any, value: Any) -> bool:
        """Whether ``value``, decoded JSON, matches; keywords that are rare count as if it did."""
        return any(self._fits(branch, value) for branch in self.branches(schema))

    def _fits(self, branch: Mapping[str, Any], value: Any) -> bool:
        if (listed := listed_values(branch)) is not None:
            return any(json.dumps(one) == json.dumps(value) for one in listed)
        kind = branch.get("type")
        if kind is None:
            return True
        if kind == "integer":
            return _is_whole(value) and _in_range(branch, value)
        if kind != kind_of(value):
            return False
        match value:
            case str():
                return _in_bounds(branch, len(value), "Length")
            case list():
                return _in_bounds(branch, len(value), "Items") and self._holds(branch, value)
            case dict():
                return self._has_members(branch, value)
        return kind != "number" or _in_range(branch, value)

    def _holds(self, branch: Mapping[str, Any], items: list[Any]) -> bool:
        first, others = items_of(branch)
        schemas = chain(first, repeat(others))
        return all(self.admits(one, item) for one, item in zip(schemas, items, strict=False))

    def _has_members(self, branch: Mapping[str, Any], members: Mapping[str, Any]) -> bool:
        listed = members_of(branch)
        others = True if "patternProperties" in branch else branch.get("additionalProperties", True)
        return all(name in members for name in required_in(branch)) and all(
            self.admits(listed.get(name, others), value) for name, value in members.items()
        )


def listed_values(branch: Mapping[str, Any]) -> list[Any] | None:
    """All that ``branch`` admits, if that is listed in it."""
    if branch.get("type") == "null":
        return [None]
    if "const" in branch:
        listed = [branch["const"]]
    elif isinstance(branch.get("enum"), list):
        listed = branch["enum"]
    else:
        return None
    kinds = _kinds(branch)
    return [
        one for one in listed if kind_of(one) in kinds or ("integer" in kinds and _is_whole(one))
    ]


def _kinds(schema: Mapping[str, Any]) -> Sequence[Any]:
    kinds = schema.get("type", KINDS)
    return [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else KINDS


def kinds_in(branch: Mapping[str, Any]) -> set[str]:
    """Of the values that ``branch`` admits; a text where that can't be said."""
    if (listed := listed_values(branch)) is not None:
        return {kind_of(one) for one in listed}
    kind = branch.get("type", "unknown")
    return {"number" if kind == "integer" else str(kind)}


def kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def target_of(schema: Any, reference: str) -> Any:
    """What ``reference`` means in ``schema``; None: nothing."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    for step in steps_of(reference):
        if isinstance(schema, list) and step.isdecimal() and int(step) < len(schema):
            schema = schema[int(step)]
        else:
            schema = schema.get(step) if isinstance(schema, Mapping) else None
    return schema


def steps_of(reference: str) -> list[str]:
    """The names and numbers in a pointer."""
    steps = unquote(reference[1:]).split("/")[1:]
    return [step.replace("~1", "/").replace("~0", "~") for step in steps]


def members_of(branch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Schemas of the members that are listed."""
    listed = branch.get("properties")
    return listed if isinstance(listed, Mapping) else {}


def items_of(branch: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Schemas of the first items, and of all others."""
    first = branch.get("prefixItems")
    return first if isinstance(first, list) else [], branch.get("items", True)


def required_in(branch: Mapping[str, Any]) -> list[Any]:
    required = branch.get("required")
    return required if isinstance(required, list) else []


def bound(branch: Mapping[str, Any], keyword: str, default: float) -> float:
    value = branch.get(keyword)
    return value if isinstance(value, (int, float)) else default


def _merged(parts: Iterable[Any]) -> dict[str, Any] | None:
    """One schema of what all ``parts`` say; None: it takes more than that."""
    merged: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items() if isinstance(part, Mapping) else ():
            known = merged.get(name, value)
            if name == "required":
                value = [*required_in(merged), *value] if isinstance(value, list) else known
            elif name == "properties" and not members_of(merged).keys() & members_of(part).keys():
                value = {**members_of(merged), **members_of(part)}
            elif known != value and name not in NOTES:
                return None
            merged[name] = value
    return merged


def _is_whole(value: Any) -> bool:
    return kind_of(value) == "number" and float(value).is_integer()


def _in_bounds(branch: Mapping[str, Any], size: int, what: str) -> bool:
    return bound(branch, f"min{what}", size) <= size <= bound(branch, f"max{what}", size)


def _in_range(branch: Mapping[str, Any], value: float) -> bool:
    least, most = bound(branch, "minimum", value), bound(branch, "maximum", value)
    above, below = bound(branch, "exclusiveMinimum", -inf), bound(branch, "exclusiveMaximum", inf)
    return least <= value <= most and above < value < below
