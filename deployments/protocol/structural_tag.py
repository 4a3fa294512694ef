"""vLLM's structural tags as grammars in Lark's notation: texts, and forms between them.

Both notations of them: a tree of formats, and the older list of ``structures`` that begin with one
of ``triggers``. What llguidance can't enforce is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deployments.backend import Grammar, SchemaPart
from deployments.http.errors import shown
from deployments.protocol.chat_formats.rules import Rules, literal, sequence
from deployments.protocol.strict import RefusedError
from deployments.protocol.tag_node import TagNode

_IN_SLASHES = re.compile(r"\\.|[/\n]", re.DOTALL)
"""What is to be looked at where a regular expression is to stand between slashes."""


def structural_tag(value: Any, param: str) -> Grammar:
    """``param``: the field that ``value`` came in. Raises ``RefusedError``."""
    tag = TagNode(value, "")
    formats = _Formats(param)
    if "structures" in tag.members:
        tag.only("structures", "triggers", type="structural_tag")
        start = formats.structures(tag)
    else:
        tag.only("format", type="structural_tag")
        start = formats.one(tag.node("format"), ())
    formats.rules.add("start", start)
    return Grammar("grammar", str(formats.rules), param, parts=tuple(formats.parts))


class _Formats:
    """Symbols of each format with what follows it, one of ``ends``, if that is known to be text:
    the lexer takes the longest match, so what ends a text is a part of its terminal."""

    def __init__(self, param: str) -> None:
        self.rules = Rules({})
        self.parts: list[SchemaPart] = []
        self._param = param
        self._num_rules = 0
        self._kinds: Mapping[str, Callable[[TagNode, Sequence[str]], str]] = {
            "any_text": self._any_text,
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "optional": self._optional,
            "or": self._or,
            "plus": self._plus,
            "regex": self._regex,
            "repeat": self._repeat,
            "sequence": self._sequence,
            "star": self._star,
            "tag": self._tag,
            "tags_with_separator": self._tags_with_separator,
            "triggered_tags": self._triggered_tags,
        }

    def one(self, node: TagNode, ends: Sequence[str]) -> str:
        kind = node.members.get("type")
        if not isinstance(kind, str) or kind not in self._kinds:
            raise node.refused("type", f"one of {', '.join(self._kinds)}")
        return self._kinds[kind](node, ends)

    def _const_string(self, node: TagNode, ends: Sequence[str]) -> str:
        node.only("type", "value")
        return sequence(literal(node.text("value")), _any_of(ends))

    def _json_schema(self, node: TagNode, ends: Sequence[str]) -> str:
        node.only("type", "json_schema", style="json", any_order=False, excludes=[])
        return sequence(self._schema(node, "json_schema"), _any_of(ends))

    def _schema(self, node: TagNode, name: str) -> str:
        schema = node.members.get(name)
        if schema is True:
            schema = {}
        if not isinstance(schema, Mapping):
            raise node.refused(name, "a JSON schema, an object")
        self.parts.append(SchemaPart(f"{self._param}{node.where}.{name}", schema, False))
        return self.rules.json(self._name(), schema, is_strict=True)

    def _regex(self, node: TagNode, ends: Sequence[str]) -> str:
        node.only("type", "pattern", excludes=[])
        pattern = _IN_SLASHES.sub(_in_slashes, node.text("pattern"))
        terminal = self.rules.add(self._name().upper(), f"/{pattern}/")
        return self._ended(terminal, ends) if ends else terminal

    def _any_text(self, node: TagNode, ends: Sequence[str]) -> str:
        node.only("type", "excludes")
        excludes = node.texts("excludes", may_be_empty=True)
        return self._ended(self.rules.free(self._name().upper(), *excludes, *ends), ends)

    def _ended(self, terminal: str, ends: Sequence[str]) -> str:
        """Text with its end in one terminal; it may be empty."""
        if not ends:
            return f"{terminal}?"
        return self.rules.add(f"{terminal}_ENDED", f"{terminal} ({_any_of(ends)})")

    def _sequence(self, node: TagNode, ends: Sequence[str]) -> str:
        node.only("type", "elements")
        elements = node.nodes("elements")
        symbols: list[str] = []
        is_begun = False
        for number, element in enumerate(elements):
            following = elements[number + 1] if number + 1 < len(elements) else None
            if is_begun:
                symbols.append(self._begun(element, following, ends))
                is_begun = False
                continue
            begin = _begin(following) if following else None
            if begin is not None and _takes_end(element):
                symbols.append(self.one(element, (begin,)))
                is_begun = True
            elif following is not None and _is_free(element):
                raise RefusedError(
                    "can only be followed by a const_string, a tag, or nothing, so that it is "
                    "certain where it ends",
                    where=element.where,
                )
            else:
                symbols.append(self.one(element, () if following else ends))
        return sequence(*symbols)

    def _begun(self, node: TagNode, following: TagNode | None, ends: Sequence[str]) -> str:
        """One whose beginning stands in the terminal before it."""
        rest = () if following else ends
        if node.members["type"] == "const_string":
            return _any_of(rest)
        return self._tag(node, rest, is_begun=True)

    def _or(self, node: TagNode, ends: Sequence[str]) -> str:
        node.only("type", "elements")
        return f"({' | '.join(self.one(one, ends) for one in node.nodes('elements'))})"

    def _optional(self, node: TagNode, ends: Sequence[str]) -> str:
        return self._times(node, "?", ends)

    def _star(self, node: TagNode, ends: Sequence[str]) -> str:
        return self._times(node, "*", ends)

    def _plus(self, node: TagNode, ends: Sequence[str]) -> str:
        return self._times(node, "+", ends)

    def _repeat(self, node: TagNode, ends: Sequence[str]) -> str:
        least = node.number("min", 0)
        most = "" if node.members.get("max") == -1 else str(node.number("max", least))
        return self._times(node, f"{{{least},{most}}}", ends, "min", "max")

    def _times(self, node: TagNode, times: str, ends: Sequence[str], *names: str) -> str:
        node.only("type", "content", *names)
        content = node.node("content")
        if _is_free(content):
            raise RefusedError("can't be repeated: it has no end", where=content.where)
        return sequence(f"({self.one(content, ())}){times}", _any_of(ends))

    def _tag(self, node: TagNode, ends: Sequence[str], *, is_begun: bool = False) -> str:
        begin = "" if is_begun else literal(node.text("begin"))
        return sequence(begin, self._inside(node), _any_of(ends))

    def _inside(self, tag: TagNode) -> str:
        """What follows a tag's beginning."""
        tag.only("begin", "content", "end", type="tag")
        end = tag.members.get("end")
        its_ends = tag.texts("end") if isinstance(end, list) else (tag.text("end"),)
        return self.one(tag.node("content"), its_ends)

    def _tags_with_separator(self, node: TagNode, ends: Sequence[str]) -> str:
        node.only("type", "tags", "separator", "at_least_one", "stop_after_first")
        separator = node.members.get("separator")
        if not isinstance(separator, str):
            raise node.refused("separator", "a string")
        tag = self._add(" | ".join(self._tag(one, ()) for one in node.nodes("tags")))
        more = "" if node.flag("stop_after_first") else f"({sequence(literal(separator), tag)})*"
        tags = sequence(tag, more)
        return sequence(tags if node.flag("at_least_one") else f"({tags})?", _any_of(ends))

    def structures(self, node: TagNode) -> str:
        """The older notation: a schema between a beginning and an end, each time it begins."""
        tags = []
        for one in node.nodes("structures"):
            one.only("begin", "schema", "end")
            inside = sequence(self._schema(one, "schema"), literal(one.text("end")))
            tags.append((one, self._add(inside)))
        return self._triggered(node, tags, ())

    def _triggered_tags(self, node: TagNode, ends: Sequence[str]) -> str:
        node.only("type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes")
        tags = [(tag, self._add(self._inside(tag))) for tag in node.nodes("tags")]
        return self._triggered(node, tags, ends)

    def _triggered(
        self, node: TagNode, tags: Sequence[tuple[TagNode, str]], ends: Sequence[str]
    ) -> str:
        """``tags`` with the rule of what follows the beginning of each."""
        triggers, excludes = node.texts("triggers"), node.texts("excludes", may_be_empty=True)
        text = self.rules.free(self._name().upper(), *triggers, *excludes, *ends)
        found: dict[str, list[str]] = {}
        for tag, inside in tags:
            begin = tag.text("begin")
            trigger = next((one for one in triggers if begin.startswith(one)), None)
            if trigger is None:
                raise tag.refused("begin", f"a string that begins with one of {shown(triggers)}")
            rest = sequence(literal(begin[len(trigger) :]), inside)
            found.setdefault(trigger, []).append(rest)
        behind_text = []
        for number, (trigger, inside_it) in enumerate(found.items()):
            begun = self.rules.add(f"{text}_{number}", f"{text} {literal(trigger)}")
            behind_text.append(f"{begun} ({' | '.join(inside_it)})")
        first = " | ".join(sequence(literal(tag.text("begin")), inside) for tag, inside in tags)
        one, end = self._add(" | ".join(behind_text)), _any_of(ends)
        match node.flag("at_least_one"), node.flag("stop_after_first"):
            case True, True:
                return sequence(f"({first})", end)
            case True, False:
                return sequence(f"({first})", f"{one}*", self._ended(text, ends))
            case False, True:
                return f"({self._ended(text, ends)} | {sequence(one, end)})"
        return sequence(f"{one}*", self._ended(text, ends))

    def _add(self, body: str) -> str:
        return self.rules.add(self._name(), body)

    def _name(self) -> str:
        self._num_rules += 1
        return f"format_{self._num_rules}"


def _any_of(texts: Sequence[str]) -> str:
    symbols = " | ".join(map(literal, texts))
    return f"({symbols})" if len(texts) > 1 else symbols


def _begin(node: TagNode) -> str | None:
    """The text that it begins with, if there is but one."""
    match node.members.get("type"):
        case "const_string":
            return node.text("value")
        case "tag":
            return node.text("begin")
    return None


def _is_free(node: TagNode) -> bool:
    """Whether it may end in text that has no end of its own."""
    match node.members:
        case {"type": "any_text" | "triggered_tags"}:
            return True
        case {"type": "or", "elements": list(elements)}:
            return any(_is_free(TagNode(one, node.where)) for one in elements)
        case {"type": "sequence", "elements": [*_, last]}:
            return _is_free(TagNode(last, node.where))
    return False


def _takes_end(node: TagNode) -> bool:
    return node.members.get("type") == "regex" or _is_free(node)


def _in_slashes(match: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n"}.get(match[0], match[0])
