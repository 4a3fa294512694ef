"""Schemas in the shapes that APIs, configuration files and tools have, made up by number.

What could go on for ever has a bound, so that answers of a model with random weights end.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

Schema = dict[str, Any]

NAMES = ("id", "name", "kind", "größe", "start_time", "is-active", "x:y", "items", "a b", "notes")
WORDS = ("on", "off", "Köln", "a/b", 'say "hi"', "new\nline", "🍏", "", "null", "0")
PATTERNS = ("^[A-Z]{2}[0-9]{2,4}$", "^(v[0-9]\\.){1,2}[0-9]$", "^#[0-9a-f]{6}$", "^[^\\s]{1,5}$")
FORMATS = ("date", "uuid", "ipv4", "email")
DEEPEST = 3


class SchemaMaker:
    """Of one schema and what it defines for itself."""

    def __init__(self, number: int) -> None:
        self._random = Random(number)
        self._definitions: dict[str, Schema] = {}

    def make(self) -> Schema:
        schema = self._object(0)
        return {**schema, "$defs": self._definitions} if self._definitions else schema

    def _value(self, depth: int) -> Schema:
        leaves: list[Callable[[], Schema]] = [
            self._text,
            self._form,
            self._integer,
            self._number,
            self._choice,
            self._nullable,
        ]
        nests: list[Callable[[int], Schema]] = [
            self._object,
            self._array,
            self._tuple,
            self._map,
            self._any_of,
            self._tagged,
            self._merged,
            self._reference,
            self._tree,
        ]
        if depth >= DEEPEST or self._random.random() < 0.6:
            return self._random.choice(leaves)()
        return self._random.choice(nests)(depth + 1)

    def _text(self) -> Schema:
        longest = self._random.randint(1, 12)
        return {"type": "string", "minLength": min(longest, 2), "maxLength": longest}

    def _form(self) -> Schema:
        if self._random.random() < 0.5:
            return {"type": "string", "pattern": self._random.choice(PATTERNS)}
        return {"type": "string", "format": self._random.choice(FORMATS), "maxLength": 36}

    def _integer(self) -> Schema:
        least = self._random.choice((-1_000_000, -7, 0, 1))
        schema = {"type": "integer", "minimum": least, "maximum": self._random.choice((9, 65_535))}
        return schema | self._random.choice(({}, {"multipleOf": 3}))

    def _number(self) -> Schema:
        return {"type": "number", "minimum": self._random.choice((-180, 0.5)), "maximum": 180}

    def _choice(self) -> Schema:
        values = [*self._random.sample(WORDS, 3), 1.5, None, True]
        one = self._random.choice(values)
        return self._random.choice(({"enum": values}, {"const": one}, {"type": "boolean"}))

    def _nullable(self) -> Schema:
        return {"type": [self._random.choice(("boolean", "integer")), "null"], "maximum": 99}

    def _object(self, depth: int) -> Schema:
        names = self._random.sample(NAMES, self._random.randint(1, 4))
        return {
            "type": "object",
            "properties": {name: self._value(depth) for name in names},
            "required": [name for name in names if self._random.random() < 0.6],
            "additionalProperties": False,
        }

    def _array(self, depth: int) -> Schema:
        least = self._random.randint(0, 2)
        return {
            "type": "array",
            "items": self._value(depth),
            "minItems": least,
            "maxItems": least + self._random.randint(0, 2),
        }

    def _tuple(self, depth: int) -> Schema:
        first = [self._value(depth), self._value(depth)]
        return {"type": "array", "prefixItems": first, "items": False, "minItems": 1}

    def _map(self, depth: int) -> Schema:
        """Its names are not bounded; there are two of them at most."""
        return {
            "type": "object",
            "patternProperties": {"^[a-z]{1,3}$": self._value(depth)},
            "additionalProperties": False,
            "maxProperties": 2,
        }

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self._value(depth) for _ in range(self._random.randint(2, 3))]}

    def _tagged(self, depth: int) -> Schema:
        """Members tell which one it is, so that no value is of two."""
        return {"oneOf": [self._member(tag, depth) for tag in ("circle", "line")]}

    def _member(self, tag: str, depth: int) -> Schema:
        value = self._object(depth)
        value["properties"] = {"type": {"const": tag}, **value["properties"]}
        value["required"] = ["type", *value["required"]]
        return value

    def _merged(self, depth: int) -> Schema:
        whole = self._object(depth)
        return {"allOf": [whole, {"required": list(whole["properties"])}]}

    def _reference(self, depth: int) -> Schema:
        name = f"shared_{len(self._definitions)}"
        self._definitions[name] = {}
        self._definitions[name] = self._value(depth)
        return {"$ref": f"#/$defs/{name}"}

    def _tree(self, depth: int) -> Schema:
        name = f"node_{len(self._definitions)}"
        below = {"type": "array", "items": {"$ref": f"#/$defs/{name}"}, "maxItems": 1}
        self._definitions[name] = {
            "type": "object",
            "properties": {"value": self._integer(), "below": below},
            "required": ["value"],
            "additionalProperties": False,
        }
        return {"$ref": f"#/$defs/{name}"}


def schema_of(number: int) -> Schema:
    """Always the same for a number."""
    return SchemaMaker(number).make()
