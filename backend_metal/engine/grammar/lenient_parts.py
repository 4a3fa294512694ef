"""Schemas of tools that are not strict, in a grammar, as far as they can be enforced."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from backend_metal.engine.grammar.depth import MAX_SCHEMA_LEVELS, schema_levels
from backend_metal.engine.grammar.refusals import ANY_ARGUMENTS, Problem, mended
from deployments.backend import Grammar

MOST_KNOWN = 4096
"""Schemas that are kept as they turned out, since agents send theirs with each request."""
MAX_KNOWN_CHARS = 8192
"""A longer schema is not kept."""


class LenientParts:
    def __init__(
        self, problem_of: Problem, too_long: Callable[[Any], Iterator[tuple[str, Any, str, str]]]
    ) -> None:
        """``too_long``: in a schema, each schema with a list of which no grammar can be made: its
        path, itself, and the keyword."""
        self._problem_of = problem_of
        self._too_long = too_long
        self._known = lru_cache(MOST_KNOWN)(self.mended)

    def enforceable(self, grammar: Grammar) -> Grammar:
        """``grammar`` without what of its lenient parts can't be enforced."""
        parts, left_out = [], [*grammar.left_out]
        for part in grammar.parts:
            if part.is_lenient:
                text = json.dumps(part.schema)
                mend = self._known if len(text) <= MAX_KNOWN_CHARS else self.mended
                schema, places = mend(text)
                part = replace(part, schema=schema)
                left_out += [f"{part.tool}{place}" for place in places]
            parts.append(part)
        if grammar.with_parts is None or len(left_out) == len(grammar.left_out):
            return grammar
        return replace(grammar.with_parts(tuple(parts)), left_out=tuple(left_out))

    def mended(self, text: str) -> tuple[dict[str, Any], list[str]]:
        """A schema without what can't be enforced, and the places of it."""
        schema = json.loads(text)
        if schema_levels(schema) > MAX_SCHEMA_LEVELS:
            return ANY_ARGUMENTS, [""]
        lists = [*self._too_long(schema)]
        for _, part, keyword, _ in lists:
            del part[keyword]
        schema, places = mended(schema, self._problem_of)
        return schema, [*(f"{path}.{keyword}" for path, _, keyword, _ in lists), *places]


def looser(grammar: Grammar) -> Grammar | None:
    """The same with any arguments in place of its largest lenient parts, which together are more
    than can be compiled; None: it has none left."""
    sizes = {
        part.param: len(json.dumps(part.schema))
        for part in grammar.parts
        if part.is_lenient and part.schema != ANY_ARGUMENTS
    }
    if grammar.with_parts is None or not sizes:
        return None
    loose = {param for param, size in sizes.items() if 2 * size >= max(sizes.values())}
    parts = tuple(
        replace(part, schema=ANY_ARGUMENTS) if part.param in loose else part
        for part in grammar.parts
    )
    names = (part.tool for part in grammar.parts if part.param in loose)
    return replace(grammar.with_parts(parts), left_out=(*grammar.left_out, *names))
