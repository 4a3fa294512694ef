"""Rules for arguments in a language's own notation.

Values are as the language writes them; a string, a list or an object of a strict tool that is bound
by more than the notation shows is enforced in JSON, which all of these notations have a place for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from typing import Any

from deployments.backend import JSON_WHITESPACE
from deployments.protocol.chat_formats.literal_calls import LiteralCalls
from deployments.protocol.chat_formats.regex import escaped
from deployments.protocol.chat_formats.rules import Rules, literal, sequence
from deployments.protocol.chat_formats.schema import (
    NOTES,
    bound,
    items_of,
    listed_values,
    members_of,
    required_in,
)
from deployments.protocol.chat_formats.tool import STRING_BOUNDS, Tool

_LIST = NOTES | {"items", "maxItems", "minItems", "prefixItems", "type"}
_OBJECT = NOTES | {"additionalProperties", "properties", "required", "type"}
_SINGLE_QUOTED = r"""/'([^'\\]|\\['"\\nrt])*'/"""


class LiteralRules:
    def __init__(self, rules: Rules, form: LiteralCalls, tool: Tool, prefix: str) -> None:
        """``prefix``: of the names of rules."""
        self._rules = rules
        self._tool = tool
        self._prefix = prefix
        self._num_rules = 0
        self._notation = form.notation
        self._is_python = form.separator == "="
        self._gap = self._add(f"/{JSON_WHITESPACE}/") + "?" if self._is_python else ""
        self._comma = sequence('","', self._gap)
        self._known: dict[str, str] = {}
        """Names of the rules of values, by their schemas, which may hold themselves."""

    def fields(self, separator: str, closer: str) -> str:
        """The tool's parameters, and ``closer``."""
        members = members_of(self._tool.parameters)
        keys = {name: self._bare(name, separator) for name in members}
        other_key = f"{self._other_name(members)} {literal(separator)}"
        return self._members(self._tool.parameters, keys, other_key, self._tool.others, closer)

    def _members(
        self,
        schema: Mapping[str, Any],
        keys: Mapping[str, str],
        other_key: str,
        others: Any,
        closer: str,
    ) -> str:
        """Those of an object, and ``closer``. ``keys``: rules of what stands before each;
        ``others``: the schema of members that are not listed; None: there are none."""
        listed = members_of(schema)
        pairs = {name: f"{keys[name]} {self._value(one, name)}" for name, one in listed.items()}
        other = "" if others is None else f"{other_key} {self._value(others, '')}"
        orders = [[*pairs]]
        if self._notation.is_sorted and (alphabet := sorted(pairs, key=str.lower)) != orders[0]:
            orders.append(alphabet)
        required = required_in(schema)
        ways = (self._in_order(one, pairs, required, other, closer) for one in orders)
        return self._add(" | ".join(ways))

    def _in_order(
        self,
        order: list[str],
        pairs: Mapping[str, str],
        required: list[Any],
        other: str,
        closer: str,
    ) -> str:
        first = rest = end = self._add(literal(closer))
        for pair, may_lack in [
            *(("", True) for _ in [0] if other),
            *((pairs[name], name not in required) for name in reversed(order)),
        ]:
            more = self._new_name()
            firsts = [f"{pair} {rest}"] if pair else []
            rests = [f"{self._comma} {one}" for one in firsts]
            if may_lack:
                firsts.append(first)
                rests.append(rest)
            if other and (self._notation.is_sorted or rest == end):
                # Where members are sorted, others may stand between any two.
                firsts.append(f"{other} {more}")
                rests.append(f"{self._comma} {other} {more}")
            first = self._add(" | ".join(firsts))
            rest = self._rules.add(more, " | ".join(rests))
        return first

    def _bare(self, name: str, separator: str) -> str:
        """The name of a member and what follows it, in quotes if it needs some."""
        is_plain = self._notation.keys.fullmatch(name)
        return literal(f"{name if is_plain else json.dumps(name, ensure_ascii=False)}{separator}")

    def _other_name(self, listed: Mapping[str, Any]) -> str:
        known = "|".join(map(escaped, listed))
        name = self._new_name().upper()
        bare = self._rules.add(name, f"/{self._notation.keys.pattern}/ & ~/({known})/")
        return bare if self._is_python else f"({bare} | {self._text()})"

    def _value(self, schema: Any, parameter: str) -> str:
        known = json.dumps(schema)
        if known not in self._known:
            name = self._known[known] = self._new_name()
            listed, ways = [], list[str]()
            for one in self._tool.branches(schema, parameter):
                if (values := listed_values(one)) is None:
                    ways.append(self._branch(one, parameter))
                else:
                    listed += values
            ways += [self._listed(listed)] if listed else []
            self._rules.add(name, " | ".join(dict.fromkeys(ways)) or self._json(schema))
        return self._known[known]

    def _branch(self, schema: dict[str, Any], parameter: str) -> str:
        is_strict, keywords = self._tool.is_strict, schema.keys()
        match schema.get("type"):
            case "string":
                return self._string(schema)
            case "boolean":
                return self._listed([True, False])
            case "array" if not is_strict or keywords <= _LIST:
                return self._list(schema, parameter)
            case "object" if not is_strict or keywords <= _OBJECT:
                return self._object(schema)
        return self._json(schema)

    def _object(self, schema: Mapping[str, Any]) -> str:
        listed = members_of(schema)
        others = schema.get("additionalProperties", None if listed else {})
        if isinstance(patterns := schema.get("patternProperties"), Mapping):
            others = {"anyOf": [*patterns.values(), False if others is None else others]}
        if self._is_python:
            colon = sequence('":"', self._gap)
            keys = {name: f"{self._listed([name])} {colon}" for name in listed}
            other_key = f"{self._value({'type': 'string'}, '')} {colon}"
        else:
            keys = {name: self._bare(name, ":") for name in listed}
            other_key = f'{self._other_name(listed)} ":"'
        others = None if others is False else others
        members = self._members(schema, keys, other_key, others, "}")
        return sequence('"{"', self._gap, members)

    def _list(self, schema: Mapping[str, Any], parameter: str) -> str:
        first, others = items_of(schema)
        least = int(bound(schema, "minItems", 0))
        most = bound(schema, "maxItems", inf)
        items = [self._value(one, parameter) for one in first]
        rest = '"]"'
        if others is not False:
            other = self._value(others, parameter)
            items = items or [other]
            low, high = max(0, least - len(items)), most - len(items)
            if high > 0:
                bounds = f"{{{low},{'' if high == inf else int(high)}}}"
                rest = self._add(f'({self._comma} {other}){bounds} "]"')
        for number, item in reversed([*enumerate(items)]):
            ways = [sequence(self._comma if number else "", item, rest)] if most > number else []
            if number >= least:
                ways.append('"]"')
            rest = self._add(" | ".join(ways))
        return sequence('"["', self._gap, rest)

    def _string(self, schema: Mapping[str, Any]) -> str:
        if self._tool.is_strict and not STRING_BOUNDS.isdisjoint(schema):
            return self._json(schema)
        return f"{self._json(schema)} | {_SINGLE_QUOTED}" if self._is_python else self._text()

    def _text(self) -> str:
        """Any, between quotes that are the notation's own."""
        quote = self._notation.quotes[0]
        if quote not in self._known:
            text = self._rules.until(self._new_name(), quote)
            self._known[quote] = self._add(sequence(self._rules.marker(quote), text))
        return self._known[quote]

    def _listed(self, listed: list[Any]) -> str:
        """Any of these values."""
        quote = "" if self._is_python else self._rules.marker(self._notation.quotes[0])
        objects, words, texts, ways = list[Any](), list[str](), list[str](), list[str]()
        for value in listed:
            if isinstance(value, (dict, list)):
                objects.append(value)
            elif not quote or not isinstance(value, str):
                words += self._ways_to_write(value)
            elif self._rules.has_tokens(value):
                ways.append(sequence(quote, self._rules.marker(value), quote))
            else:
                texts.append(value)
        if objects:
            ways.append(self._json({"enum": objects}))
        if words:
            ways.append(self._rules.any_of(self._new_name(), words))
        if texts:
            ways.append(sequence(quote, self._rules.any_of(self._new_name(), texts), quote))
        return " | ".join(ways)

    def _ways_to_write(self, value: Any) -> list[str]:
        """A scalar, of strings those of Python."""
        text = json.dumps(value, ensure_ascii=False)
        if not isinstance(value, str):
            return [text, *(word for word, meant in self._notation.words.items() if meant == text)]
        is_plain = text[1:-1] == value and "'" not in value
        return [text, *([f"'{value}'"] if is_plain else [])]

    def _json(self, schema: Any) -> str:
        part = self._tool.part(schema)
        return self._rules.json(self._new_name(), part, is_strict=self._tool.is_strict)

    def _add(self, body: str) -> str:
        return self._rules.add(self._new_name(), body)

    def _new_name(self) -> str:
        self._num_rules += 1
        return f"{self._prefix}_{self._num_rules}"
