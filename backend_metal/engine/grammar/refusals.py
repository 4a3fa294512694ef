"""Where in a JSON schema that can't be enforced the reason lies, found by compiling parts of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

_REPORT = re.compile(r"Unimplemented keys: \[.*\]")
_WHERE = re.compile(r"\s*while processing \S+:.*|\s*at line 1 column \d+$", re.DOTALL)
_IN_OUR_WORDS = (
    (re.compile("oneOf constraints are not supported.*"), "more than one of its schemas may match"),
    (re.compile("json-schema://(?=/)"), ""),
    (re.compile(r"panic: .*symbols\.len\(\).*", re.DOTALL), "it is too large"),
)
"""Of reasons: the first would be to turn an option on that no client has."""
ANY_ARGUMENTS = {"type": "object", "additionalProperties": True}
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose members are named by the schema's author."""
_DATA = frozenset({"const", "default", "enum", "examples"})
"""Keywords that hold no schema."""
_LAST = ("anyOf", "allOf", "prefixItems", "items", "$ref", "properties", "type")
"""Keywords that are at fault where no other is: of most values they say what these are."""
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


def mended(schema: Mapping[str, Any], problem_of: Problem) -> tuple[dict[str, Any], list[str]]:
    """``schema``, of an object, without the keywords because of which it, or a schema in it, can't
    be compiled; and their places."""
    left, places = deepcopy(dict(schema)), list[str]()
    try:
        _Search(left, problem_of).mend(places)
    except _SearchLimitError:
        return ANY_ARGUMENTS, [""]
    return left or ANY_ARGUMENTS, places


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
            elif keywords := self._keywords(part, sought):
                return self._of_keyword(keywords[0])
            elif found := self._part_with(part, None):
                # By itself a part may fail in another way than within the whole.
                self._path, part = self._path + found[0], found[1]
                sought = self._cause(part)
            else:
                return self._of_path()

    def mend(self, places: list[str]) -> None:
        """Take out of the schema what can't be enforced, and add where it was to ``places``. Raises
        ``_SearchLimitError``."""
        inner_first = [*schemas_in(self._schema)][::-1]
        for path, part in (*self._faulty(inner_first), ("", self._schema)):
            while problem := self._cause(part):
                keywords = self._keywords(part, problem)
                for keyword in keywords:
                    del part[keyword]
                    places.append(f"{path}.{keyword}")
                if "properties" in keywords:
                    part |= {"additionalProperties": True, "required": []}
                if not keywords:
                    part.clear()
                    places.append(path)

    def _faulty(self, parts: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Those that can't be compiled by themselves, or have no value."""
        each = [_alone(part) for _, part in parts]
        if self._cause({"type": "array", "prefixItems": each, "minItems": len(each)}):
            half = len(parts) // 2
            for some in (parts[:half], parts[half:]) if half else ():
                yield from self._faulty(some)
            if not half:
                yield from parts

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

    def _keywords(self, part: Any, problem: str) -> list[str]:
        """Those that contradict each other, or the one without which there is another problem;
        empty: there is none such."""
        keys = part if isinstance(part, dict) else ()
        left = {key: self._cause(_without(part, key)) for key in keys}
        cures = sorted((key for key, cause in left.items() if not cause), key=_rank)
        changes = sorted((key for key, cause in left.items() if cause != problem), key=_rank)
        return [key for key in cures if key not in _LAST] or (cures or changes)[:1]

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
    for step, one in _direct(schema):
        yield from schemas_in(one, path + step)


def _alone(schema: Mapping[str, Any]) -> dict[str, Any]:
    """``schema`` with anything in place of those in it that say nothing of the same value."""
    alone = {key: value for key, value in schema.items() if key not in _SHARED}
    for key, value in alone.items():
        if key in _NAMED and isinstance(value, dict):
            alone[key] = {name: one is not False for name, one in value.items()}
        elif isinstance(value, dict) and key not in _DATA:
            alone[key] = True
    return alone


def _direct(schema: Any) -> Iterator[tuple[str, Any]]:
    """``_parts``, and what is shared."""
    shared = {key: schema[key] for key in _SHARED if isinstance(schema.get(key), dict)}
    named = [(f".{key}{_step(n)}", group[n]) for key, group in shared.items() for n in group]
    for step, one in (*named, *_parts(schema)):
        if isinstance(one, dict):
            yield step, one


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


def _rank(keyword: str) -> int:
    return _LAST.index(keyword) if keyword in _LAST else -1


def _without(schema: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != keyword}
