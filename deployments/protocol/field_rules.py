"""What becomes of a field of an API that nothing here stands behind.

A field that a request's model declares is honoured. Every other one that clients know has a rule:
it is accepted because an answer without it is as right, or refused because that one would be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from deployments.http.errors import shown


@dataclass(frozen=True)
class WithoutEffect:
    """Accepted, whatever its value is."""

    why: str
    """An answer without it is right: for the table of fields."""
    allowed: str
    """What clients send."""
    shape: Any
    """The same as a type, for pydantic."""

    def knows(self, value: Any) -> bool:
        """Whether ``value`` is what clients are known to send."""
        try:
            self._adapter.validate_python(value)
        except ValidationError:
            return False
        return True

    def json_schema(self) -> dict[str, Any]:
        return {"description": without_effect(self.allowed, self.why)}

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.shape, config=ConfigDict(strict=True, allow_inf_nan=False))


@dataclass(frozen=True)
class Refused:
    """Any value is a 400 but those that ask for nothing, which clients send by default."""

    why: str
    """An answer without it would be wrong."""
    neutral: tuple[Any, ...] = ()

    def problem(self, value: Any) -> str | None:
        """What is wrong with ``value``; completes "<field> ..."."""
        if any(type(value) is type(one) and value == one for one in self.neutral):
            return None
        if not self.neutral:
            return "is not supported"
        return f"is not supported; leave it out or send {' or '.join(map(shown, self.neutral))}"

    def json_schema(self) -> dict[str, Any]:
        return {"enum": [*self.neutral, None], "description": f"is not supported: {self.why}"}


FieldRules = Mapping[str, WithoutEffect | Refused]


def without_effect(allowed: str, why: str) -> str:
    """What the document says of a field that is accepted."""
    return f"{allowed}; without effect: {why}"
