"""Where in a JSON schema the keywords stand that can't be enforced."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_REPORT = re.compile(r"Unimplemented keys: (\[.*\])")
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose members are named by the schema's author."""
_DATA = frozenset({"const", "default", "enum", "examples"})
"""Keywords that hold no schema."""


def describe(problem: str, schema: Any) -> str:
    """llguidance's ``problem``, which names such keywords, with the path of the first of them."""
    if not (report := _REPORT.search(problem)):
        return problem
    keywords = set(json.loads(report[1]))
    for path, keyword in _keywords(schema, "#"):
        if keyword in keywords:
            return f"the keyword {keyword} at {path} is not supported"
    return problem


def _keywords(schema: Any, path: str) -> Iterator[tuple[str, str]]:
    """Path and name of each keyword, those of subschemas included; recursion is as deep as the
    schema, which whoever decoded it has bounded."""
    if isinstance(schema, list):
        for index, one in enumerate(schema):
            yield from _keywords(one, f"{path}/{index}")
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        yield path, keyword
        if keyword in _NAMED and isinstance(value, dict):
            for name, one in value.items():
                yield from _keywords(one, f"{path}/{keyword}/{name}")
        elif keyword not in _DATA:
            yield from _keywords(value, f"{path}/{keyword}")
