"""Where in a JSON schema that can't be enforced the reason lies, found by compiling parts of it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_REPORT = re.compile(r"Unimplemented keys: \[.*\]")
_WHERE = re.compile(r"\s*while processing json-schema:.*", re.DOTALL)
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose members are named by the schema's author."""
_DATA = frozenset({"const", "default", "enum", "examples"})
"""Keywords that hold no schema."""
_SHARED = ("$defs", "definitions")
_PLAIN_NAME = re.compile(r"[A-Za-z_$][\w$]*")
MAX_SEARCH_S = 0.25
"""Of the thread's own time; then what was found so far has to do."""

Problem = Callable[[Any], str]
"""Why a schema can't be compiled; empty: it can."""


def describe(schema: Any, problem_of: Problem) -> str:
    """The path and the keyword in ``schema`` that is at fault, and why, to follow the name of the
    field; empty: nothing is."""
    began = time.thread_time()
    shared = {key: schema[key] for key in _SHARED if isinstance(schema, dict) and key in schema}

    def cause(part: Any) -> str:
        if time.thread_time() - began > MAX_SEARCH_S:
            return ""
        return _WHERE.sub("", problem_of({**shared, **part} if isinstance(part, dict) else part))

    problem = _WHERE.sub("", problem_of(schema))
    if not problem:
        return ""
    path, part = "", schema
    seen: set[str] = set()
    while True:
        if (target := _target(schema, part)) and target[0] not in seen:
            path, part = target
            seen.add(path)
        elif found := next((one for one in _parts(part) if cause(one[1]) == problem), None):
            path, part = path + found[0], found[1]
        else:
            break
    keyword = next((key for key in part if cause(_without(part, key)) != problem), "")
    if not keyword:
        return f"{path} can't be enforced: {problem.strip()}"
    reason = "" if _REPORT.fullmatch(problem) else f": {problem.strip()}"
    return f'{path}: keyword "{keyword}" can\'t be enforced{reason}'


def _parts(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas in it, each with its path."""
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        if keyword in _DATA or keyword in _SHARED:
            continue
        if isinstance(value, list):
            for index, one in enumerate(value):
                if isinstance(one, dict):
                    yield f".{keyword}[{index}]", one
        elif isinstance(value, dict) and keyword in _NAMED:
            for name, one in value.items():
                # True and False are schemas, too, with nothing in them that could be at fault.
                if isinstance(one, dict):
                    yield f".{keyword}{_step(name)}", one
        elif isinstance(value, dict):
            yield f".{keyword}", value


def _target(schema: Any, part: Any) -> tuple[str, Any] | None:
    """What ``part`` refers to in ``schema``."""
    reference = part.get("$ref") if isinstance(part, Mapping) else None
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    path = ""
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(schema, Mapping) or name not in schema:
            return None
        path, schema = path + _step(name), schema[name]
    return path, schema


def _step(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name):
        return f".{name}"
    return f"[{json.dumps(name, ensure_ascii=False)}]"


def _without(schema: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != keyword}
