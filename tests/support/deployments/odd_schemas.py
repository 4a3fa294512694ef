"""Schemas of tools that somebody's generator got wrong, and calls that they were meant to let."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

BASE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "s": {"type": "string", "description": "x", "minLength": 1, "maxLength": 9},
        "p": {"type": "string", "pattern": "^[a-z]+$"},
        "d": {"type": "string", "format": "date"},
        "n": {"type": "integer", "minimum": 0, "maximum": 9},
        "e": {"type": "string", "enum": ["a", "b c"]},
        "l": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
        "o": {
            "type": "object",
            "properties": {"x": {"type": "number"}},
            "required": ["x"],
            "additionalProperties": False,
        },
        "r": {"$ref": "#/$defs/P"},
        "u": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["s", "o"],
    "additionalProperties": False,
    "$defs": {
        "P": {
            "type": "object",
            "properties": {"k": {"type": "string"}, "c": {"$ref": "#/$defs/P"}},
            "required": ["k"],
        }
    },
}
VALUE: dict[str, Any] = {
    "s": "abc",
    "p": "z",
    "d": "2024-01-31",
    "n": 3,
    "e": "b c",
    "l": ["q", "r"],
    "o": {"x": 1.5},
    "r": {"k": "z", "c": {"k": "y"}},
    "u": None,
}
ODD: dict[str, list[Any]] = {
    "$schema": ["http://example.org/mine"],
    "type": [None, 3, "dict", {}, [], ["object", 3]],
    "required": [None, True, "s", ["s", 3, None], ["s", "nowhere"]],
    "properties": [None, [], "s", 3],
    "additionalProperties": [None, "no", 0, []],
    "propertyNames": [{"pattern": "["}],
    "dependentRequired": [{"s": ["o"]}],
    "if": [{"required": ["d"]}],
    "unevaluatedProperties": [False],
    "$defs": [None, [], 3],
    "$defs.P": [
        None,
        "P",
        {"$ref": "#/$defs/P"},
        {"allOf": [{"$ref": "#/$defs/P"}, {"type": "object"}]},
    ],
    "$defs.P.required": [["k", "c"], 3],
    "$defs.P.properties.c": [{"$ref": "#/$defs/P", "required": ["k"]}],
    "properties.s": [None, "string", ["string"], 3],
    "properties.s.type": [None, 3, "text", {}, [], ["string", None]],
    "properties.s.minLength": [None, -1, "1", 1.5, 50, 10**12, 10**400],
    "properties.s.maxLength": [None, -1, "9", 0, 10**12],
    "properties.s.required": [True, "s"],
    "properties.s.default": [10**400],
    "properties.p.pattern": [
        None, 5, "[a-z", "(?=a).*", r"(?<y>z)\k<y>", r"^\p{Foo}+$", r"\bz\b", "(?>z)",
        "/^z$/i",
    ],
    "properties.d.format": [None, 3, "day", {}],
    "properties.n.minimum": [None, "0", 20, True, 10**400],
    "properties.n.exclusiveMinimum": ["0", 9],
    "properties.n.multipleOf": [0, "1", None],
    "properties.e.enum": [None, [], "a", {"a": 1}, [10**400]],
    "properties.e.const": [None, 3],
    "properties.l.items": [None, "string", 3],
    "properties.l.minItems": [None, "1", 5, -1],
    "properties.l.maxItems": [-1, 1.5, 0],
    "properties.l.uniqueItems": [True],
    "properties.l.prefixItems": [{}, [], 3],
    "properties.o.properties": [None, [], "x"],
    "properties.o.additionalProperties": [None, "no", 3],
    "properties.o.patternProperties": [None, {"[": {"type": "number"}}, {"x": "number"}],
    "properties.o.minProperties": [3, "1", -1],
    "properties.o.maxProperties": [0, "1"],
    "properties.r": [
        {"$ref": "#/$defs/Nowhere"}, {"$ref": "https://example.org/x.json"}, {"$ref": 3},
        {"$ref": "#/properties/s/type"}, {"$ref": "#P"}, {"$ref": None}, {"$dynamicRef": "#P"},
    ],
    "properties.u.anyOf": [None, [], ["string", "null"], [None, {"type": "null"}], {}],
    "properties.u.allOf": [None, [], {}, [{"type": "null"}, {"type": "string"}]],
    "properties.u.oneOf": [None, [], [{"type": "null"}, {"type": "null"}, {"type": "string"}]],
    "properties.u.not": [None, {"type": "string"}],
}  # fmt: skip
"""By the place where they stand; a call like ``VALUE`` is meant to be let whichever is there."""
READ: dict[str, list[Any]] = {
    "$schema": [None, 7, "http://json-schema.org/draft-03/schema#"],
    "$id": [4, "::no uri::"],
    "type": ["OBJECT"],
    "properties.s.type": ["STRING", ["String", "NULL"]],
    "properties.s.description": [None, 3, {}],
    "properties.l.type": ["ARRAY"],
    "properties.l.items": [[{"type": "STRING"}], [{"type": "string"}, {"type": "string"}]],
    "properties.p": [{"$ref": "#/properties/u/anyOf/0"}, {"$ref": "#/%24defs/P/properties/k"}],
}
"""What is odd, or rare, and says all the same what is meant: nothing is left out."""
_VALUES: list[Any] = [
    None, True, False, 0, 3, -1, 1.5, 10**400, "", "odd", "STRING", [], {}, [3], [None], ["s"],
    {"type": 3}, {"$ref": "#"}, {"$ref": "#/$defs/P"}, {"$ref": "#/nowhere"}, [{"$ref": "#"}],
    {"s": None}, [{"type": "string"}], {"enum": []}, {"pattern": "("}, {"allOf": [False]},
]  # fmt: skip
_KEYWORDS = [
    *{step for place in ODD for step in place.split(".") if len(step) > 1},
    "contains", "dependencies", "else", "then", "additionalItems", "title", "x-y", "nullable",
]  # fmt: skip


def with_odd(place: str, value: Any) -> dict[str, Any]:
    schema = deepcopy(BASE)
    *steps, last = place.split(".")
    inner = schema
    for step in steps:
        inner = inner[step]
    inner[last] = value
    return schema


def mutated(seed: int) -> dict[str, Any]:
    """``BASE`` with one to three values at random in places at random."""
    draw = random.Random(seed)
    schema = deepcopy(BASE)
    for _ in range(draw.randint(1, 3)):
        inner = draw.choice([*_containers(schema)])
        if isinstance(inner, list):
            inner[draw.randrange(len(inner))] = deepcopy(draw.choice(_VALUES))
        else:
            key = draw.choice([*inner, draw.choice(_KEYWORDS)])
            inner[key] = deepcopy(draw.choice(_VALUES))
    return schema


def _containers(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return ([value] if inner else []) + [one for part in inner for one in _containers(part)]
