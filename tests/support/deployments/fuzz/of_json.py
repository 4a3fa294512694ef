"""Mutations of a JSON body, whose results need not be JSON."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

Place = tuple[Any, Any]
"""A container, and a key or index in it."""

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    16,
    2**31,
    -(2**63),
    2**64,
    0.5,
    -0.0,
    1e308,
    "",
    "1",
    "demo",
    "user",
    "text",
    "\0",
    "\u2028\ufeff",
    "<|im_end|>",
    "é" * 300,
    "word " * 2000,
    [],
    {},
    [[]],
    [None],
    {"": ""},
    {"type": "text", "text": "one"},
    [0] * 300,
    ["one"] * 20,
    {str(number): number for number in range(1100)},
)
WRITTEN = (
    "NaN",
    "-Infinity",
    "1e999",
    "9" * 5000,
    "-0",
    "01",
    "0x10",
    "'one'",
    "undefined",
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\u0000"',
    '"\\x"',
    '"\t"',
    "[" * 3000 + "]" * 3000,
    '{"a":' * 200 + "1" + "}" * 200,
    '{"a":1,"a":2}',
    "/* */ 1",
    "",
)
"""What no encoder writes."""
_MARK = "@WRITTEN@"
MOST_COPIES = 12


def mutate(dice: Random, body: bytes, others: Sequence[bytes]) -> bytes:
    """Raises ``ValueError`` if ``body`` is no JSON."""
    tree = [json.loads(body)]
    for _ in range(dice.choice((1, 1, 2, 3))):
        written = _change(dice, tree, others)
        if written is not None:
            text = json.dumps(tree[0], ensure_ascii=dice.random() < 0.5)
            # A mark that stood in a key is left.
            text = text.replace(f'"{_MARK}"', written, 1)
            return text.encode("utf-8", "surrogatepass")
    return json.dumps(tree[0]).encode()


def _change(dice: Random, tree: list[Any], others: Sequence[bytes]) -> str | None:
    """Changes ``tree`` somewhere. Returns what is to stand where it left a mark, if it did."""
    container, key = dice.choice(list(_places(tree)))
    kind = dice.randrange(9)
    value = container[key]
    if kind <= 2:
        container[key] = copy.deepcopy(dice.choice(VALUES))
    elif kind == 3:
        container[key] = _MARK
        return dice.choice(WRITTEN)
    elif kind == 4:
        container[key] = [copy.deepcopy(value) for _ in range(dice.randint(1, MOST_COPIES))]
    elif kind == 5:
        source = dice.choice(list(_places([json.loads(dice.choice(others))])))
        container[key] = source[0][source[1]]
    elif kind == 6 and container is not tree:
        del container[key]
    elif kind == 7 and isinstance(container, dict):
        # Misspelt, or a member of another object.
        name = dice.choice((key.upper(), key + "s", "", *_names(others)))
        container[name] = container.pop(key)
    else:
        container[key] = {"text": value}
    return None


def _places(value: Any) -> Iterator[Place]:
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in list(members):
        yield value, key
        if isinstance(member, (dict, list)):
            yield from _places(member)


def _names(others: Sequence[bytes]) -> list[str]:
    return sorted({name for other in others for name in json.loads(other)})
