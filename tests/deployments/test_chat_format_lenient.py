"""What is passed over in schemas of tools that are not strict."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.protocol.chat_formats.lenient import lenient


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"type": "string", "pattern": "^(?=a)b"}, {"type": "string"}),
        ({"type": "string", "pattern": r"(a)\1"}, {"type": "string"}),
        ({"type": "any"}, {}),
        ({"type": ["string", "date"]}, {"type": ["string"]}),
        ({"type": "integer", "enum": ["1", "2"]}, {"enum": ["1", "2"]}),
        ({"type": "integer", "enum": [True]}, {"enum": [True]}),
        (
            {"patternProperties": {"(?!x)": {}, "x": {"type": "uri"}}},
            {"patternProperties": {"x": {}}},
        ),
        ({"properties": {"type": {"type": "dict"}}}, {"properties": {"type": {}}}),
        ({"anyOf": [{"type": "x"}, True], "$defs": {"a": {"items": {"type": 3}}}},
         {"anyOf": [{}, True], "$defs": {"a": {"items": {}}}}),
    ],
)  # fmt: skip
def test_what_no_grammar_could_hold_a_call_to_is_left_out(schema: Any, left: Any) -> None:
    assert lenient(schema) == left


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^a(?:b|c)$", "enum": ["ab"]},
        {"type": ["integer", "null"], "enum": [1, None], "default": {"type": "x"}},
        {"type": "number", "enum": [1]},
        {"const": {"type": "x"}, "examples": [{"pattern": "(?=a)"}]},
    ],
)
def test_all_else_stays(schema: Any) -> None:
    assert lenient(schema) == schema
