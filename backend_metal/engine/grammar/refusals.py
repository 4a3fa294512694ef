"""Where in a JSON schema that can't be enforced the reason lies, found by compiling parts of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_REPORT = re.compile(r"Unimplemented keys: \[.*\]")
_WHERE = re.compile(r"\s*while processing \S+:.*", re.DOTALL)
_IN_OUR_WORDS = (
    (re.compile("oneOf constraints are not supported.*"), "more than one of its schemas may match"),
    (re.compile("json-schema://(?=/)"), ""),
)
"""Of reasons: the first would be to turn an option on that no client has."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose members are named by the schema's author."""
_DATA = frozenset({"const", "default", "enum", "examples"})
"""Keywords that hold no schema."""
_SHARED = ("$defs", "definitions")
_OWN_NAME = ("$id", "id")
_PLAIN_NAME = re.compile(r"[A-Za-z_$][\w$]*")
MAX_SEARCH_WORK = 1_000_000
"""Characters of the schemas that one search may compile, half a second; past it the search answers
with what it has found. A count and not a time: the answer is the same on every machine."""
COMPILE_WORK = 5_000
"""Work of one compilation, added to its number of characters."""

Problem = Callable[[Any], str]
"""Why a schema can't be compiled; empty: it can."""


def describe(schema: Any, problem_of: Problem) -> str:
    """The path and the keyword in ``schema`` that is at fault, and why, to follow the name of the
    field; empty: nothing is."""
    try:
        return _Search(schema, problem_of).describe()
    except _SearchLimitError as stopped:
        return str(stopped)


class _SearchLimitError(Exception):
    """The search has done its work; the message is what it has found."""


class _Search:
    def __init__(self, schema: Any, problem_of: Problem) -> None:
        self._schema = schema
        self._problem_of = problem_of
        self._shared = (
            {key: schema[key] for key in _SHARED if key in schema}
            if isinstance(schema, dict)
            else {}
        )
        self._path, self._told = "", ""
        self._work_left = MAX_SEARCH_WORK

    def describe(self) -> str:
        self._told = sought = _WHERE.sub("", self._problem_of(self._schema)).strip()
        if not sought:
            return ""
        part = self._schema
        seen: set[str] = set()
        while True:
            if (target := _target(self._schema, part)) and target[0] not in seen:
                self._path, part = target
                seen.add(self._path)
            elif found := self._part_with(part, sought):
                self._path, part = self._path + found[0], found[1]
            elif keyword := self._keyword(part, sought):
                return self._of_keyword(keyword)
            elif found := self._part_with(part, None):
                # By itself a part may fail in another way than within the whole.
                self._path, part = self._path + found[0], found[1]
                sought = self._cause(part)
            else:
                return self._of_path()

    def _cause(self, part: Any) -> str:
        """Why ``part`` can't be compiled by itself. Raises ``_SearchLimitError``."""
        if isinstance(part, dict):
            # With its own name it would be taken for one of those that are shared.
            part = {key: value for key, value in part.items() if key not in _OWN_NAME}
            if '"$ref"' in json.dumps(part):
                part = {**self._shared, **part}
        self._work_left -= len(json.dumps(part)) + COMPILE_WORK
        if self._work_left < 0:
            raise _SearchLimitError(self._of_path())
        return _WHERE.sub("", self._problem_of(part)).strip()

    def _part_with(self, part: Any, problem: str | None) -> tuple[str, Any] | None:
        """The first schema in it that has that problem; None: any."""
        for path, one in _parts(part):
            cause = self._cause(one)
            if cause == problem or (cause and problem is None):
                return path, one
        return None

    def _keyword(self, part: Any, problem: str) -> str:
        """The one without which there is none, or at least another; empty: there is none such."""
        left = {key: self._cause(_without(part, key)) for key in part}
        cures = [key for key, cause in left.items() if not cause]
        changes = [key for key, cause in left.items() if cause != problem]
        return next(iter(cures or changes), "")

    def _of_keyword(self, keyword: str) -> str:
        reason = "" if _REPORT.fullmatch(self._told) else f": {reason_of(self._told)}"
        return f'{self._path}: keyword "{keyword}" can\'t be enforced{reason}'

    def _of_path(self) -> str:
        return f"{self._path} can't be enforced: {reason_of(self._told)}"


def reason_of(problem: str) -> str:
    """What a client can make something of."""
    for pattern, words in _IN_OUR_WORDS:
        problem = pattern.sub(words, problem)
    return problem.strip()


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


def schemas_in(schema: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """``schema``, and all that are within it, each with its path."""
    yield path, schema
    shared = {key: schema[key] for key in _SHARED if isinstance(schema.get(key), dict)}
    named = [(f".{key}{_step(n)}", group[n]) for key, group in shared.items() for n in group]
    for step, one in (*_parts(schema), *named):
        if isinstance(one, dict):
            yield from schemas_in(one, path + step)


def _target(schema: Any, part: Any) -> tuple[str, Any] | None:
    """What ``part`` refers to in ``schema``."""
    reference = part.get("$ref") if isinstance(part, Mapping) else None
    return target_of(schema, reference) if isinstance(reference, str) else None


def target_of(schema: Any, reference: str) -> tuple[str, Any] | None:
    """What ``reference`` means in ``schema``, with its path; None: nothing."""
    if not reference.startswith("#/"):
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
