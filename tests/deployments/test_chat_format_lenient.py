"""What a schema is read as, and what is left out of those of tools that are not strict."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.protocol.chat_formats.lenient import MAX_LEVELS, enforceable, well_formed


def read(schema: Any) -> tuple[Any, list[str]]:
    left_out: list[tuple[str, ...]] = []
    schema = enforceable(well_formed(schema, left_out.append), left_out.append)
    return schema, [".".join(path) for path in left_out]


@pytest.mark.parametrize(
    ("schema", "left", "left_out"),
    [
        ({"type": "any"}, {}, ["type"]),
        ({"type": ["STRING", "date"]}, {"type": ["string"]}, ["type"]),
        ({"type": "Integer", "default": None}, {"type": "integer", "default": None}, []),
        ({"type": "integer", "enum": ["1", "2"]}, {"enum": ["1", "2"]}, ["type"]),
        ({"type": "integer", "enum": [True]}, {"enum": [True]}, ["type"]),
        ({"enum": []}, {}, ["enum"]),
        ({"required": ["a", None]}, {"required": ["a"]}, ["required"]),
        ({"properties": {"type": {"type": "dict"}}}, {"properties": {"type": {}}},
         ["properties.type.type"]),
        ({"properties": {"a": None, "b": False}}, {"properties": {"a": {}, "b": False}},
         ["properties.a"]),
        ({"properties": [], "required": ["a"], "additionalProperties": False},
         {"additionalProperties": True}, ["properties"]),
        ({"anyOf": [{"type": "x"}, True], "items": None}, {"anyOf": [{}, True]},
         ["anyOf.0.type", "items"]),
        ({"properties": {"a": {}}, "patternProperties": {"x": {}}}, {"properties": {"a": {}}},
         ["patternProperties"]),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, {"anyOf": [{"const": 1}, {"const": 2}]}, []),
        ({"items": [{"type": "null"}], "additionalItems": False},
         {"items": False, "prefixItems": [{"type": "null"}]}, []),
        ({"$ref": "#/nowhere"}, {}, ["$ref"]),
        ({"allOf": [{"$ref": "#/components/a~1b"}], "components": {"a/b": {"type": "x"}}},
         {"allOf": [{"$ref": "#/$defs/a_b"}], "components": {"a/b": {"type": "x"}},
          "$defs": {"a_b": {}}}, ["components.a/b.type"]),
        ({"items": {"$ref": "#"}}, {"items": {"$ref": "#/$defs/whole"},
         "$defs": {"whole": {"items": {"$ref": "#/$defs/whole"}}}}, []),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}, "b": {}}},
         {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{}]}}}, ["$defs.a.allOf.0.$ref"]),
    ],
)  # fmt: skip
def test_what_no_grammar_could_hold_a_call_to_is_left_out(
    schema: Any, left: Any, left_out: list[str]
) -> None:
    assert read(schema) == (left, left_out)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^a(?:b|c)$", "enum": ["ab"], "description": "d"},
        {"type": ["integer", "null"], "enum": [1, None], "default": {"type": "x"}},
        {"type": "number", "enum": [1]},
        {"const": {"type": "x"}, "examples": [{"pattern": "(?=a)"}]},
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    ],
)
def test_all_else_stays(schema: Any) -> None:
    assert read(schema) == (schema, [])


def test_references_end_before_a_stack_does() -> None:
    """Each is within the one before it."""
    definitions = {
        f"d{n}": {"properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(5000)
    }
    schema, (path,) = read({"$ref": "#/$defs/d0", "$defs": {**definitions, "d5000": {}}})
    assert len(schema["$defs"]) <= MAX_LEVELS
    assert path.endswith(".properties.x.$ref")
