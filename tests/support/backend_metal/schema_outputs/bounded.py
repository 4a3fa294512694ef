"""A schema of somebody else's with bounds, so that answers of a model with random weights end."""

from __future__ import annotations

from typing import Any

LONGEST = 8
MOST = 2
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = ("items", "additionalProperties", "additionalItems")
_OWN_FORM = ("pattern", "format", "enum", "const", "maxLength")


def bounded(schema: Any) -> Any:
    """What matches it matches ``schema``, too."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for name in _NAMED:
        if isinstance(made.get(name), dict):
            made[name] = {key: bounded(value) for key, value in made[name].items()}
    for name in _LISTS:
        if isinstance(made.get(name), list):
            made[name] = [bounded(one) for one in made[name]]
    for name in _ONE:
        if isinstance(made.get(name), list):
            made[name] = [bounded(one) for one in made[name]]
        elif name in made:
            made[name] = bounded(made[name])
    kind = made.get("type")
    if kind == "string" and not any(name in made for name in _OWN_FORM):
        made["maxLength"] = max(LONGEST, made.get("minLength", 0))
    elif kind == "array":
        made.setdefault("maxItems", max(MOST, made.get("minItems", 0)))
    elif kind == "object" and "properties" in made and "patternProperties" not in made:
        made.setdefault("additionalProperties", False)
    return made
