"""Rules of a grammar in llguidance's Lark, as the forms of calls need them.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md. Its lexer takes the longest
match and never goes back, which is why free text and the marker that ends it are one terminal. No
regular expression matches a special token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from deployments.backend import JSON_WHITESPACE

ANYTHING = "(?s:.*)"
WHITE = r"[ \t\r\n]*"


class Rules:
    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        """``special_tokens``: ids of those that are no text for the tokenizer."""
        self._special_tokens = special_tokens
        longest_first = sorted(special_tokens, key=len, reverse=True)
        self._tokens = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._rules: list[str] = []

    def __str__(self) -> str:
        return "\n".join(reversed(self._rules))

    def add(self, name: str, body: str) -> str:
        self._rules.append(f"{name}: {body}")
        return name

    def marker(self, text: str) -> str:
        """``text`` with the special tokens in it as such."""
        return " ".join(
            f"<[{self._special_tokens[one]}]>" if one in self._special_tokens else literal(one)
            for one in self._pieces(text)
        )

    def free(self, name: str, *markers: str, heads: Sequence[str] = ()) -> str:
        """Text without any of ``markers``, which begins with none of ``heads``, which are regular
        expressions."""
        texts = [one for one in markers if len(self._pieces(one)) == 1 and not self._is_token(one)]
        body = f"/{ANYTHING}/"
        if texts:
            marks = "|".join(map(escaped, texts))
            body += f" & ~/{ANYTHING}({marks}){ANYTHING}/"
        if heads:
            body += f" & ~/({'|'.join(heads)}){ANYTHING}/"
        return self.add(name, body)

    def behind(self, free: str, marker: str) -> str:
        """``marker`` behind ``free`` text, if there is any."""
        first, *rest = self._pieces(marker)
        if self._is_token(first):
            return f"{free}? {self.marker(marker)}"
        ended = self.add(f"{free}_ENDED", f"{free} {literal(first)}")
        return " ".join([ended, *map(self.marker, rest)])

    def until(self, name: str, end: str, *other_ends: str) -> str:
        """Any text up to the first of the ends, and that one; several are no special tokens."""
        first, *rest = self._pieces(end)
        if self._is_token(first):
            text = self.add(name.upper(), f"/{ANYTHING}/")
            return self.add(name, f"{text}? {self.marker(end)}")
        if rest:
            text = self.add(name.upper(), f"/{ANYTHING}{escaped(first)}/")
            return self.add(name, " ".join([text, *map(self.marker, rest)]))
        ends = " | ".join(map(literal, (end, *other_ends)))
        self.add(f"{name}[lazy]", f"/{ANYTHING}/ ({ends})")
        return name

    def json(self, name: str, schema: Mapping[str, Any], *, is_strict: bool) -> str:
        options = {"whitespace_pattern": JSON_WHITESPACE, "lenient": not is_strict}
        return self.add(name, f"%json {json.dumps({**schema, 'x-guidance': options})}")

    def _pieces(self, text: str) -> list[str]:
        return [one for one in self._tokens.split(text) if one]

    def _is_token(self, text: str) -> bool:
        return text in self._special_tokens


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def escaped(text: str) -> str:
    """As a part of a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/")


def sequence(*parts: str) -> str:
    return " ".join(filter(None, parts))
