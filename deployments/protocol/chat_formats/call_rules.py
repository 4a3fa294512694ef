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
from deployments.protocol.chat_formats.rules import Rules, literal, sequence
from deployments.protocol.chat_formats.tagged_calls import TaggedCalls
from deployments.protocol.chat_formats.tool import (
    SHARED,
    STRING_BOUNDS,
    Tool,
    UnenforceableError,
    takes_string,
)


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
        required = tool.parameters.get("required", ())
        for index, (key, schema) in enumerate(tool.parameters.get("properties", {}).items()):
            kind = form.kinds[0 if takes_string(schema) else 1] if form.kinds else ""
            tag = f'"\\n"? {marker(form.key_start)} {literal(f"{key}{form.key_end}{kind}")}'
            if form.value_start:
                tag += f' "\\n"? {marker(form.value_start)}'
            if form.value_end[0].startswith("\n"):
                tag += ' "\\n"'
            one = f"{tag} {self._tagged_value(form, tool, key, schema, f'value_{number}_{index}')}"
            parts.append(one if key in required else f"({one})?")
        parts.append(f'"\\n"? {marker(form.call_end)}' if form.call_end else "")
        parts.append(f'"\\n"? {marker(form.end)}' if form.end else "")
        return "", self._rules.add(f"call_{number}", sequence(*parts))

    def _tagged_value(self, form: TaggedCalls, tool: Tool, key: str, schema: Any, name: str) -> str:
        end = self._rules.marker(form.value_end[0])
        if not takes_string(schema):
            return f"{self._json(schema, tool, name)} {end}"
        if choices := schema.get("enum"):
            return f"({' | '.join(map(literal, choices))}) {end}"
        if tool.is_strict and (bounds := sorted(schema.keys() & STRING_BOUNDS)):
            raise UnenforceableError(tool, key, bounds[0])
        return self._rules.until(name, *form.value_end)

    @_call.register
    def _literal_call(self, form: LiteralCalls, tool: Tool, number: int) -> tuple[str, str]:
        opening, closer = form.brackets
        values = LiteralRules(self._rules, form, tool, f"value_{number}")
        end = "" if form.group else self._rules.marker(form.end)
        rest = sequence(values.fields(tool.parameters, form.separator, closer), end)
        return f"{form.prefix}{tool.name}{opening}", self._rules.add(f"call_{number}", rest)

    def _json(self, schema: Any, tool: Tool, name: str) -> str:
        return self._rules.json(name, tool.part(schema), is_strict=tool.is_strict)
