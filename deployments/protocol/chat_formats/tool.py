"""A tool, as grammars and readers see it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STRING_BOUNDS = frozenset({"const", "format", "maxLength", "minLength", "pattern"})
"""Keywords that leave less than any string."""
SHARED = ("$defs", "definitions")
"""Keywords of schemas that others refer to."""


class UnenforceableError(Exception):
    """A form can't hold a strict tool to a keyword."""

    def __init__(self, tool: Tool, parameter: str, keyword: str) -> None:
        step = f".{parameter}" if parameter.isidentifier() else f"[{json.dumps(parameter)}]"
        super().__init__(
            f'{tool.param}.properties{step}: keyword "{keyword}" can\'t be enforced in the form in '
            "which this model calls tools"
        )
        self.param = tool.param


@dataclass(frozen=True)
class Tool:
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """JSON schema of an object."""
    is_strict: bool = False
    """Whether every keyword of the schema is enforced, or the schema refused; otherwise those that
    can't be are passed over."""
    param: str = "parameters"
    """The field that they came in, for errors."""

    def part(self, schema: Any) -> dict[str, Any]:
        """``schema``, a part of the parameters' or all of it, so that it stands alone."""
        whole = dict(schema) if isinstance(schema, Mapping) else {}
        if schema is self.parameters:
            return {"type": "object", **whole}
        shared = {key: self.parameters[key] for key in SHARED if key in self.parameters}
        return {**shared, **whole}


def takes_string(schema: object) -> bool | None:
    """Whether a value is a string by its schema; None: it doesn't say."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(choices := schema.get("enum"), list):
        return all(isinstance(one, str) for one in choices)
    kind = schema.get("type")
    return None if kind is None else kind == "string"
