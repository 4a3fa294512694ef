"""How deep a grammar is, references followed: llguidance recurses over it, and a stack that runs
over ends the process.

What is told is at least as much as it can be, in one pass: of definitions that lead back to
themselves, that they all stand below each other."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypeVar

from backend_metal.engine.grammar.refusals import target_of

MAX_SCHEMA_LEVELS = 1000
"""Objects and arrays of JSON: a third of what a stack of 8 MB holds."""
MAX_RULE_LEVELS = 500

Node = TypeVar("Node", bound=Hashable)

_NAMES = ("$id", "id", "$anchor", "$dynamicAnchor")
_RULE = re.compile(r"^\s*[?!]?([A-Za-z_]\w*)[^:\n\"/]*:", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")
_SCHEMA_IN_RULES = re.compile(r"%json\s*(?=\{)")


def schema_levels(schema: Any) -> int:
    if not isinstance(schema, dict | list):
        return 0
    root = id(schema)
    containers = {id(one): (one, level) for one, level in _containers(schema)}
    references = {
        identity: reference
        for identity, (one, _) in containers.items()
        if isinstance(one, dict) and isinstance(reference := one.get("$ref"), str)
    }
    targets: dict[str, int] = {}
    for reference in references.values():
        target = schema if reference == "#" else (target_of(schema, reference) or ("", None))[1]
        targets[reference] = id(target) if id(target) in containers else root
    if any(_is_named(one) for one, level in containers.values() if level > 1):
        # What its references mean depends on where they stand.
        return (len(targets) + 1) * max(level for _, level in containers.values())
    heads = {root, *targets.values()}
    sizes: dict[int, int] = dict.fromkeys(heads, 1)
    below: dict[int, set[int]] = defaultdict(set)
    waiting = [(schema, root, 1)]
    while waiting:
        one, head, level = waiting.pop()
        if id(one) in heads and id(one) != head:
            below[head].add(id(one))
            head, level = id(one), 1
        # Whoever is inside begins behind what is around.
        sizes[head] = max(sizes[head], level)
        if reference := references.get(id(one)):
            below[head].add(targets[reference])
        waiting.extend((inner, head, level + 1) for inner in _inside(one))
    return _longest(sizes, below)


def rule_levels(text: str) -> int:
    """Of a grammar in Lark's notation, and of the schemas in it."""
    starts = [*_RULE.finditer(text)]
    names = {one[1] for one in starts}
    below: dict[str, set[str]] = defaultdict(set)
    for one, following in zip(starts, [*starts[1:], None], strict=True):
        body = text[one.end() : following.start() if following else None]
        below[one[1]] |= {*_WORD.findall(body)} & names
    return _longest(dict.fromkeys(names, 1), below)


def schemas_in_rules(text: str) -> Iterator[Any]:
    """Those that could be read."""
    for one in _SCHEMA_IN_RULES.finditer(text):
        try:
            yield json.JSONDecoder().raw_decode(text, one.end())[0]
        except (ValueError, RecursionError):
            continue


def _is_named(one: Any) -> bool:
    return isinstance(one, dict) and any(isinstance(one.get(name), str) for name in _NAMES)


def _inside(one: Any) -> Iterator[Any]:
    for value in one.values() if isinstance(one, dict) else one:
        if isinstance(value, dict | list):
            yield value


def _containers(schema: Any) -> Iterator[tuple[Any, int]]:
    """Each with its level, from 1."""
    waiting = [(schema, 1)]
    while waiting:
        one, level = waiting.pop()
        yield one, level
        waiting.extend((inner, level + 1) for inner in _inside(one))


def _longest(sizes: Mapping[Node, int], below: Mapping[Node, set[Node]]) -> int:
    """The size of the longest way down; of those that can come back to themselves, of all."""
    above: dict[Node, set[Node]] = defaultdict(set)
    for node, inner in below.items():
        for one in inner:
            above[one].add(node)
    open_ends = Counter({node: len(below.get(node, ())) for node in sizes})
    under: dict[Node, int] = defaultdict(int)
    ended = [node for node in sizes if not open_ends[node]]
    longest, left = 0, sum(sizes.values())
    while ended:
        node = ended.pop()
        height = sizes[node] + under[node]
        longest, left = max(longest, height), left - sizes[node]
        for one in above[node]:
            under[one] = max(under[one], height)
            open_ends[one] -= 1
            if not open_ends[one]:
                ended.append(one)
    return longest + left
