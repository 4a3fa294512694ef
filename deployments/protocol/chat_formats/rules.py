"""Rules of a grammar in llguidance's Lark, as the forms of calls need them.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md. Its lexer takes the longest
match and never goes back, which is why free text and the marker that ends it are one terminal. No
regular expression matches a special token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deployments.backend import JSON_WHITESPACE
from deployments.protocol.chat_formats.regex import escaped, without

ANYTHING = "(?s:.*)"
WHITE = r"[ \t\r\n]*"
LONGEST_SPELLED = 64
"""Characters of a marker whose absence is spelled out: the expression grows with their square."""
MOST_SPELLED = 2
"""Markers whose absence is."""


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
        is_short = all(len(one) <= LONGEST_SPELLED for one in texts)
        if texts and is_short and len(texts) <= MOST_SPELLED:
            body = " & ".join(f"/{without(one)}/" for one in texts)
        elif texts:
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
        ended = self.add(f"{free}_ENDED_{len(self._rules)}", f"{free} {literal(first)}")
        return " ".join([ended, *map(self.marker, rest)])

    def until(self, name: str, *ends: str) -> str:
        """Any text up to the first of the ends, and that one; several are no special tokens."""
        # One that ends with another comes when that one does, and would cost the lexer a state for
        # each way to have begun it.
        needed = [
            one for one in ends if not any(one != other and one.endswith(other) for other in ends)
        ]
        first, *rest = self._pieces(needed[0])
        if self._is_token(first):
            text = self.add(name.upper(), f"/{ANYTHING}/")
            return self.add(name, f"{text}? {self.marker(needed[0])}")
        if rest:
            text = self.add(name.upper(), f"/{ANYTHING}{escaped(first)}/")
            return self.add(name, " ".join([text, *map(self.marker, rest)]))
        self.add(f"{name}[lazy]", f"/{ANYTHING}/ ({' | '.join(map(literal, needed))})")
        return name

    def any_of(self, name: str, texts: Iterable[str]) -> str:
        """One of ``texts``. As ways of a rule each would be an item of the parser's, which has two
        thousand at once; a terminal they are together."""
        ways = (json.dumps(one, ensure_ascii=False) for one in dict.fromkeys(texts))
        return self.add(f"{name.upper()}_OF", " | ".join(ways))

    def json(self, name: str, schema: Mapping[str, Any], *, is_strict: bool) -> str:
        options = {"whitespace_pattern": JSON_WHITESPACE, "lenient": not is_strict}
        return self.add(name, f"%json {json.dumps({**schema, 'x-guidance': options})}")

    def first_piece(self, text: str) -> str:
        """Of a marker, up to where a special token begins or ends."""
        return next(iter(self._pieces(text)), "")

    def _pieces(self, text: str) -> list[str]:
        return [one for one in self._tokens.split(text) if one]

    def has_tokens(self, text: str) -> bool:
        """Whether special tokens are in it."""
        return self._tokens.search(text) is not None

    def _is_token(self, text: str) -> bool:
        return text in self._special_tokens


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def sequence(*parts: str) -> str:
    return " ".join(filter(None, parts))
