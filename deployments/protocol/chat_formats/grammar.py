"""Grammars in llguidance's Lark for answers that may call tools: no call but a valid one.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md. Its lexer takes the longest
match and never goes back, which is why free text and the marker that ends it are one terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Any

from deployments.backend import JSON_WHITESPACE
from deployments.protocol.chat_formats.calls import CallForm, JsonCalls, NamedCalls, TaggedCalls
from deployments.protocol.chat_formats.reader import ChatFormat

_STRING_BOUNDS = frozenset({"const", "format", "maxLength", "minLength", "pattern"})
_ANYTHING = "/(?s:.*)/"


@dataclass(frozen=True)
class Tool:
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """JSON schema of an object."""
    is_strict: bool = False
    """Whether every keyword of the schema is enforced, or the schema refused; otherwise those that
    can't be are passed over."""


def takes_string(schema: object) -> bool | None:
    """Whether a value is a string by its schema; None: it doesn't say."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(choices := schema.get("enum"), list):
        return all(isinstance(one, str) for one in choices)
    kind = schema.get("type")
    return None if kind is None else kind == "string"


def tools_grammar(
    chat_format: ChatFormat,
    tools: Sequence[Tool],
    *,
    required: bool,
    parallel: bool,
    special_tokens: Mapping[str, int] | None = None,
) -> str:
    """Calls of ``tools``, at least one; or, unless they are ``required``, text with or without
    calls behind it. One only unless they are ``parallel``. A thought may come first.

    ``special_tokens``: ids of those tokens that are no text for the tokenizer.

    Raises ``ValueError`` for what the form can't hold a strict tool to.
    """
    return _Grammar(chat_format, special_tokens or {}).build(tools, required, parallel)


class _Grammar:
    def __init__(self, chat_format: ChatFormat, special_tokens: Mapping[str, int]) -> None:
        (self._form,) = chat_format.calls
        self._thinking = chat_format.thinking
        self._wrappers = chat_format.wrappers
        self._special_tokens = special_tokens
        self._rules: list[str] = []

    def build(self, tools: Sequence[Tool], required: bool, parallel: bool) -> str:
        bodies = [self._body(self._form, tool, number) for number, tool in enumerate(tools)]
        self._rule("body", " | ".join(bodies))
        first = self._wrappers[0] if self._wrappers else self._form.start
        rest = self._rest(parallel)
        if not required:
            # What needs no call may think as it likes: thoughts are text here.
            self._free("FREE", first)
            start = f"FREE? | ({self._behind('FREE', first)}) {rest}"
        else:
            start = f"{self._marker(first)} {rest}"
            if self._thinking is not None:
                begin, end = self._thinking
                self._free("UNENDED", end)
                self._rule("WHITE", "/[ \\t\\r\\n]+/")
                thought = f"{self._marker(begin)} ({self._behind('UNENDED', end)}) WHITE?"
                start = f"({thought})? {start}"
        self._rule("start", start)
        return "\n".join(reversed(self._rules))

    def _rest(self, parallel: bool) -> str:
        """What follows the first marker."""
        form, start = self._form, self._marker(self._form.start)
        if isinstance(form, JsonCalls) and not form.end:
            more = '(", " body)*' if parallel else ""
            return f'"[" body {more} "]"'
        more = f'("\\n"? {start} body)*' if parallel else ""
        if not self._wrappers:
            return f"body {more}"
        return f'"\\n"? {start} body {more} "\\n"? {self._marker(self._wrappers[1])}'

    def _free(self, name: str, *excluded: str) -> None:
        """Text without any of these."""
        texts = [one for one in excluded if one not in self._special_tokens]
        marks = "|".join(re.escape(one).replace("/", "\\/") for one in texts)
        without = f" & ~/(?s:.*)({marks})(?s:.*)/" if marks else ""
        self._rule(name, _ANYTHING + without)

    def _behind(self, free: str, marker: str) -> str:
        """``marker`` behind free text, if there is any."""
        if marker in self._special_tokens:
            return f"{free}? {self._marker(marker)}"
        return self._rule(f"{free}_ENDED", f"{free} {_literal(marker)}")

    def _marker(self, text: str) -> str:
        token_id = self._special_tokens.get(text)
        return _literal(text) if token_id is None else f"<[{token_id}]>"

    def _rule(self, name: str, body: str) -> str:
        self._rules.append(f"{name}: {body}")
        return name

    @singledispatchmethod
    def _body(self, form: CallForm, tool: Tool, number: int) -> str:
        """What follows the start of a call of ``tool``."""
        raise TypeError(f"no grammar for {form!r}")

    @_body.register
    def _json(self, form: JsonCalls, tool: Tool, number: int) -> str:
        arguments = self._schema(tool.parameters, tool, f"arguments_{number}")
        newline = "\n" if form.end else ""
        head = _literal(f'{newline}{{"name": {json.dumps(tool.name)}, "arguments": ')
        if form.end:
            end = f"{_literal('}' + newline)} {self._marker(form.end)}"
        else:
            # In lists they have an identifier, which means nothing to the server.
            end = '(", \\"id\\": \\"" /[A-Za-z0-9]{9}/ "\\"")? "}"'
        return self._rule(f"call_{number}", f"{head} {arguments} {end}")

    @_body.register
    def _named(self, form: NamedCalls, tool: Tool, number: int) -> str:
        arguments = self._schema(tool.parameters, tool, f"arguments_{number}")
        parts = [self._marked(form.kind), _literal(form.prefix + tool.name)]
        parts.append('":" /[0-9]{1,3}/' if form.is_numbered else "")
        parts += [self._marked(form.separator), _literal(form.fence[0]), arguments]
        parts += [_literal(form.fence[1]), self._marker(form.end) if form.end else ""]
        return self._rule(f"call_{number}", " ".join(filter(None, parts)))

    @_body.register
    def _tagged(self, form: TaggedCalls, tool: Tool, number: int) -> str:
        parts = [f'"\\n"? {_literal(form.name_start)}' if form.name_start else ""]
        parts.append(_literal(tool.name + form.name_end[0].rstrip("\n")))
        required = tool.parameters.get("required", ())
        for index, (key, schema) in enumerate(tool.parameters.get("properties", {}).items()):
            tag = f'"\\n"? {_literal(f"{form.key_start}{key}{form.key_end}")}'
            if form.value_start:
                tag += f' "\\n"? {_literal(form.value_start)}'
            if form.value_end[0].startswith("\n"):
                tag += ' "\\n"'
            one = f"{tag} {self._tagged_value(form, tool, schema, f'value_{number}_{index}')}"
            parts.append(one if key in required else f"({one})?")
        parts.append(f'"\\n"? {_literal(form.call_end)}' if form.call_end else "")
        parts.append(f'"\\n"? {self._marker(form.end)}' if form.end else "")
        return self._rule(f"call_{number}", " ".join(filter(None, parts)))

    def _tagged_value(self, form: TaggedCalls, tool: Tool, schema: Any, name: str) -> str:
        end = _literal(form.value_end[0])
        if not takes_string(schema):
            return f"{self._schema(schema, tool, name)} {end}"
        if choices := schema.get("enum"):
            return f"({' | '.join(map(_literal, choices))}) {end}"
        if tool.is_strict and (bounds := sorted(schema.keys() & _STRING_BOUNDS)):
            raise ValueError(
                f"{bounds[0]} of a parameter of {tool.name} can't be enforced in the form in which "
                "this model calls tools"
            )
        self._rule(f"{name}[lazy]", f"{_ANYTHING} {end}")
        return name

    def _marked(self, text: str) -> str:
        """``text`` with the special tokens in it as such."""
        tokens = "|".join(map(re.escape, self._special_tokens)) or "(?!)"
        return " ".join(self._marker(one) for one in re.split(f"({tokens})", text) if one)

    def _schema(self, schema: Any, tool: Tool, name: str) -> str:
        options = {"whitespace_pattern": JSON_WHITESPACE, "lenient": not tool.is_strict}
        whole = {**schema, "x-guidance": options} if isinstance(schema, Mapping) else {}
        if schema is tool.parameters:
            whole = {"type": "object", **whole}
        elif "$defs" in tool.parameters:
            whole = {"$defs": tool.parameters["$defs"], **whole}
        return self._rule(name, f"%json {json.dumps(whole)}")


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
