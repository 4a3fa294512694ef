"""A tool, as grammars and readers see it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from deployments.protocol.chat_formats.json_value import decoded
from deployments.protocol.chat_formats.lenient import Path
from deployments.protocol.chat_formats.schema import Schemas, kinds_in, members_of
from deployments.protocol.chat_formats.stream import WHITE

STRING_BOUNDS = frozenset({"format", "if", "maxLength", "minLength", "not", "pattern"})
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
    left_out: tuple[Path, ...] = ()
    """Where any value may stand that the client had something to say of."""

    def part(self, schema: Any) -> dict[str, Any]:
        """``schema``, a part of the parameters' or all of it, so that it stands alone."""
        whole = dict(schema) if isinstance(schema, Mapping) else {}
        if schema is self.parameters:
            return {"type": "object", **whole}
        shared = {key: self.parameters[key] for key in SHARED if key in self.parameters}
        return {**shared, **whole}

    @cached_property
    def schemas(self) -> Schemas:
        return Schemas(self.parameters)

    @property
    def members(self) -> Mapping[str, Any]:
        """Schemas of the parameters that are listed."""
        return members_of(self.parameters)

    @property
    def others(self) -> Any:
        """The schema of parameters that are not listed; None: there are none."""
        # Most tools leave the keyword out, and mean none.
        others = self.parameters.get("additionalProperties")
        return None if others is False else others

    def branches(self, schema: Any, parameter: str) -> list[dict[str, Any]]:
        """Of ``schema``, a part of that parameter's. Raises ``UnenforceableError`` where more than
        one may match a value that must match just one."""
        options = schema.get("oneOf") if isinstance(schema, Mapping) else None
        if self.is_strict and isinstance(options, list):
            kinds = [kind for one in self.schemas.branches(schema) for kind in kinds_in(one)]
            if len(kinds) > len({*kinds}):
                raise UnenforceableError(self, parameter, "oneOf")
        return self.schemas.branches(schema)

    def is_text(self, parameter: str) -> bool:
        """Whether its values are strings alone."""
        return self._kinds_of(parameter) == {"string"}

    def takes_text(self, parameter: str) -> bool:
        """Whether they may be."""
        return "string" in self._kinds_of(parameter)

    def value_of(self, parameter: str, text: str, words: Mapping[str, str]) -> str:
        """The JSON of a value that stands as ``text`` where strings have no quotes. ``words`` are
        other ways to write some JSON."""
        written = words.get(text, text)
        kinds = self._kinds_of(parameter)
        try:
            value = decoded(written)
            if "string" in kinds:
                is_json = written == written.strip(WHITE) and not isinstance(value, str)
                is_json = is_json and self.schemas.admits(self._schema_of(parameter), value)
            else:
                is_json = bool(kinds) or not isinstance(value, str)
        except (ValueError, RecursionError):
            is_json = False
        return written.strip(WHITE) if is_json else json.dumps(text, ensure_ascii=False)

    def _schema_of(self, parameter: str) -> Any:
        return self.members.get(parameter, self.others)

    def _kinds_of(self, parameter: str) -> set[str]:
        """None for one that is not known."""
        schema = self._schema_of(parameter)
        if schema is None:
            return set()
        return {kind for one in self.schemas.branches(schema) for kind in kinds_in(one)}
