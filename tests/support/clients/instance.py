"""An instance of a JSON schema, the plainest that there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLAIN: Mapping[str, Any] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "null": None,
}


def instance(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> Any:
    """``root``: where its references lead; the schema itself, unless given. Raises ``ValueError``
    for what it does not know."""
    root = root or schema
    if "$ref" in schema:
        return instance(_referred(schema["$ref"], root), root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return instance(schema[choice][0], root)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        required = schema.get("required", [])
        return {name: instance(schema["properties"][name], root) for name in required}
    if kind == "array":
        return [instance(schema.get("items", {}), root)] * schema.get("minItems", 1)
    if kind in ("integer", "number") and "minimum" in schema:
        return schema["minimum"]
    if kind in PLAIN:
        return PLAIN[kind]
    raise ValueError(f"an instance of {schema}?")


def _referred(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return dict(found)
