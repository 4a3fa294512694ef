"""Rules for a call of one tool in each form of calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import singledispatchmethod
from typing import Any

from deployments.protocol.chat_formats.form import CallForm
from deployments.protocol.chat_formats.json_calls import JsonCalls, NamedCalls
from deployments.protocol.chat_formats.literal_calls import LiteralCalls
from deployments.protocol.chat_formats.literal_rules import LiteralRules
from deployments.protocol.chat_formats.regex import escaped
from deployments.protocol.chat_formats.rules import Rules, literal, sequence
from deployments.protocol.chat_formats.schema import listed_values, required_in
from deployments.protocol.chat_formats.tagged_calls import TaggedCalls
from deployments.protocol.chat_formats.tool import (
    SHARED,
    STRING_BOUNDS,
    Tool,
    UnenforceableError,
)

OTHER_KEY = r'[^<>"\s]+( [^<>"\s]+)*'
"""Of a parameter that no schema names."""


class CallRules:
    """Of calls of ``tools`` in one form. Raises ``UnenforceableError`` for what the form can't
    hold a strict tool to."""

    def __init__(self, rules: Rules, form: CallForm, tools: Sequence[Tool]) -> None:
        self._rules = rules
        self._tools = tools
        self._calls = [self._call(form, tool, number) for number, tool in enumerate(tools)]

    def behind(self, text: str) -> str:
        """Any of the calls with ``text`` before it, which is a part of its first terminal."""
        return " | ".join(sequence(literal(text + head), rest) for head, rest in self._calls)

    def as_json(self) -> str:
        """Any of the calls as JSON like any other, where that may come, too: then what it begins
        with must not be one terminal, which the lexer would hold on to."""
        objects = []
        for number, tool in enumerate(self._tools):
            shared = {key: tool.parameters[key] for key in SHARED if key in tool.parameters}
            members = {"name": {"const": tool.name}, "parameters": tool.part(tool.parameters)}
            schema = {
                **shared,
                "type": "object",
                "properties": members,
                "required": list(members),
                "additionalProperties": False,
            }
            objects.append(self._rules.json(f"object_{number}", schema, is_strict=tool.is_strict))
        return " | ".join(objects)

    @singledispatchmethod
    def _call(self, form: CallForm, tool: Tool, number: int) -> tuple[str, str]:
        """What follows the start of a call of ``tool``: the text that it begins with, and the
        rest."""
        raise TypeError(f"no grammar for {form!r}")

    @_call.register
    def _json_call(self, form: JsonCalls, tool: Tool, number: int) -> tuple[str, str]:
        newline = "\n" if form.end and not form.group else ""
        head = f'{newline}{{"name": {json.dumps(tool.name)}, "{form.arguments}": '
        arguments = self._json(tool.parameters, tool, f"arguments_{number}")
        its_id = '(", \\"id\\": \\"" /[A-Za-z0-9]{9}/ "\\"")?' if form.has_ids else ""
        end = "" if form.group else self._rules.marker(form.end)
        rest = sequence(arguments, its_id, literal("}" + newline), end)
        return head, self._rules.add(f"call_{number}", rest)

    @_call.register
    def _named_call(self, form: NamedCalls, tool: Tool, number: int) -> tuple[str, str]:
        rest = sequence(
            self._rules.marker(form.kind),
            literal(form.prefix + tool.name),
            '":" /[0-9]{1,3}/' if form.is_numbered else "",
            self._rules.marker(form.separator),
            literal(form.fence[0]),
            self._json(tool.parameters, tool, f"arguments_{number}"),
            literal(form.fence[1]),
            self._rules.marker(form.end),
        )
        return "", self._rules.add(f"call_{number}", rest)

    @_call.register
    def _tagged_call(self, form: TaggedCalls, tool: Tool, number: int) -> tuple[str, str]:
        marker = self._rules.marker
        parts = [f'"\\n"? {marker(form.name_start)}' if form.name_start else ""]
        parts.append(literal(tool.name + form.name_end[0].rstrip("\n")))
        required = required_in(tool.parameters)
        for index, (key, schema) in enumerate(tool.members.items()):
            one = self._tagged_member(form, tool, key, schema, f"value_{number}_{index}")
            parts.append(one if key in required else f"({one})?")
        if tool.others is not None:
            known = "|".join(map(escaped, tool.members))
            name = self._rules.add(f"OTHER_{number}", f"/{OTHER_KEY}/ & ~/({known})/")
            one = self._tagged_member(form, tool, None, tool.others, f"value_{number}", name)
            parts.append(f"({one})*")
        parts.append(f'"\\n"? {marker(form.call_end)}' if form.call_end else "")
        parts.append(f'"\\n"? {marker(form.end)}' if form.end else "")
        return "", self._rules.add(f"call_{number}", sequence(*parts))

    def _tagged_member(
        self,
        form: TaggedCalls,
        tool: Tool,
        key: str | None,
        schema: Any,
        name: str,
        key_rule: str = "",
    ) -> str:
        """``key``: None: of any name that ``key_rule`` has."""
        tag = f'"\\n"? {self._rules.marker(form.key_start)} {key_rule}'
        text, values = self._tagged_values(form, tool, key or "", schema, name)
        key_end = literal(f"{key or ''}{form.key_end}")
        if form.kinds:
            # What follows the key tells which of both it is.
            ends = (literal(f"{key or ''}{form.key_end}{kind}") for kind in form.kinds)
            ways = [f"{end} {way}" for end, way in zip(ends, (text, values), strict=True) if way]
            return f"{tag} ({' | '.join(ways)})"
        if form.value_start:
            key_end += f' "\\n"? {self._rules.marker(form.value_start)}'
        if form.value_end[0].startswith("\n"):
            key_end += ' "\\n"'
        return f"{tag} {key_end} ({' | '.join(filter(None, (text, values)))})"

    def _tagged_values(
        self, form: TaggedCalls, tool: Tool, key: str, schema: Any, name: str
    ) -> tuple[str, str]:
        """Of a parameter, each with its end: strings, and all else; empty: there are none such."""
        end = self._rules.marker(form.value_end[0])
        texts, values, others = [], [], []
        has_any_text = False
        for one in tool.branches(schema, key):
            if (listed := listed_values(one)) is not None:
                texts += [text for text in listed if isinstance(text, str)]
                rest = [value for value in listed if not isinstance(value, str)]
                values += [way for value in rest for way in form.ways_to_write(value)]
            elif one.get("type") != "string":
                others.append(one)
                if one.get("type") == "boolean":
                    values += [word for word in form.words if word in ("True", "False")]
            elif tool.is_strict and (bounds := sorted(one.keys() & STRING_BOUNDS)):
                raise UnenforceableError(tool, key, bounds[0])
            else:
                has_any_text = True
        ways = [self._rules.any_of(f"{name}_json", values)] if values else []
        if others:
            ways.append(self._json({"anyOf": others}, tool, f"{name}_json"))
        json = f"({' | '.join(ways)}) {end}" if ways else ""
        if not has_any_text:
            return (f"{self._rules.any_of(name, texts)} {end}" if texts else ""), json
        # All else is text, too, where nothing tells it apart.
        return self._rules.until(name, *form.value_end), json if form.kinds else ""

    @_call.register
    def _literal_call(self, form: LiteralCalls, tool: Tool, number: int) -> tuple[str, str]:
        opening, closer = form.brackets
        values = LiteralRules(self._rules, form, tool, f"value_{number}")
        end = "" if form.group else self._rules.marker(form.end)
        arguments = values.fields(form.separator, closer)
        rest = sequence(arguments, end)
        return f"{form.prefix}{tool.name}{opening}", self._rules.add(f"call_{number}", rest)

    def _json(self, schema: Any, tool: Tool, name: str) -> str:
        return self._rules.json(name, tool.part(schema), is_strict=tool.is_strict)
