"""Rules for arguments in a language's own notation.

Strings, and lists and objects of plain schemas, are as the language writes them; whatever else a
schema says is enforced in JSON, which every one of these notations has a place for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deployments.protocol.chat_formats.form import KEY
from deployments.protocol.chat_formats.literal_calls import LiteralCalls
from deployments.protocol.chat_formats.rules import Rules, literal, sequence
from deployments.protocol.chat_formats.tool import STRING_BOUNDS, Tool, takes_string

_NOTES = frozenset({"default", "description", "examples", "title", "type"})
_PLAIN_LIST = _NOTES | {"items"}
_PLAIN_OBJECT = _NOTES | {"additionalProperties", "properties", "required"}
_SINGLE_QUOTED = r"""/'([^'\\\r\n]|\\['"\\nrt])*'/"""


class LiteralRules:
    def __init__(self, rules: Rules, form: LiteralCalls, tool: Tool, prefix: str) -> None:
        """``prefix``: of the names of rules."""
        self._rules = rules
        self._tool = tool
        self._prefix = prefix
        self._num_rules = 0
        self._quote = form.notation.quotes[0]
        self._words = form.notation.words

    def fields(self, schema: Mapping[str, Any], separator: str, closer: str) -> str:
        """The properties of an object in their order, and ``closer``."""
        comma = ", " if self._words else ","
        required = schema.get("required", ())
        first = rest = literal(closer)
        for name, value in reversed(schema.get("properties", {}).items()):
            key = name if KEY.fullmatch(name) and name else json.dumps(name, ensure_ascii=False)
            follows = sequence(self._value(value), rest)
            skipped = ("", "") if name in required else (f" | {first}", f" | {rest}")
            first = self._add(f"{literal(f'{key}{separator}')} {follows}{skipped[0]}")
            rest = self._add(f"{literal(f'{comma}{key}{separator}')} {follows}{skipped[1]}")
        return first

    def _value(self, schema: Any) -> str:
        if takes_string(schema):
            return self._string(schema)
        if not isinstance(schema, Mapping):
            return self._json(schema)
        kind, keywords = schema.get("type"), schema.keys()
        if self._words:
            if kind == "boolean" and keywords <= _NOTES:
                return self._add('"True" | "False" | "true" | "false"')
        elif kind == "array" and keywords <= _PLAIN_LIST and "items" in keywords:
            one = self._value(schema["items"])
            return self._add(f'"[" ({one} ("," {one})*)? "]"')
        elif kind == "object" and keywords <= _PLAIN_OBJECT and schema.get("properties"):
            return sequence('"{"', self.fields(schema, ":", "}"))
        return self._json(schema)

    def _string(self, schema: Mapping[str, Any]) -> str:
        is_bounded = not STRING_BOUNDS.isdisjoint(schema)
        if choices := schema.get("enum"):
            return self._add(" | ".join(self._choice(choice) for choice in choices))
        if self._words:
            plain = self._json(schema)
            return plain if is_bounded else self._add(f"{plain} | {_SINGLE_QUOTED}")
        if is_bounded and self._tool.is_strict:
            return self._json(schema)
        text = self._rules.until(self._new_name(), self._quote)
        return sequence(self._rules.marker(self._quote), text)

    def _choice(self, choice: str) -> str:
        if not self._words:
            return sequence(*map(self._rules.marker, (self._quote, choice, self._quote)))
        quoted = json.dumps(choice, ensure_ascii=False)
        if quoted[1:-1] != choice or "'" in choice:
            return literal(quoted)
        single = f"'{choice}'"
        return f"{literal(quoted)} | {literal(single)}"

    def _json(self, schema: Any) -> str:
        part = self._tool.part(schema)
        return self._rules.json(self._new_name(), part, is_strict=self._tool.is_strict)

    def _add(self, body: str) -> str:
        return self._rules.add(self._new_name(), body)

    def _new_name(self) -> str:
        self._num_rules += 1
        return f"{self._prefix}_{self._num_rules}"
