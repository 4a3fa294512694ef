"""An object of a structural tag, looked at member by member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.http.errors import shown
from deployments.protocol.strict import RefusedError

MAX_REPEATS = 1000


class TagNode:
    def __init__(self, value: Any, where: str) -> None:
        """``where`` it stands in the tag. Raises ``RefusedError``, as do all methods."""
        if not isinstance(value, Mapping):
            raise RefusedError(f"must be an object, not {shown(value)}", where=where)
        self.members = value
        self.where = where

    def refused(self, name: str, allowed: str) -> RefusedError:
        value = shown(self.members[name]) if name in self.members else "nothing"
        return RefusedError(f"must be {allowed}, not {value}", where=f"{self.where}.{name}")

    def only(self, *names: str, **fixed: Any) -> None:
        """Refuse other members than these; and those of ``fixed``, unless they are so."""
        for name in self.members:
            if name in fixed and self.members[name] != fixed[name]:
                raise self.refused(name, shown(fixed[name]))
            if name not in names and name not in fixed:
                raise RefusedError("is not supported", where=f"{self.where}.{name}")

    def node(self, name: str) -> TagNode:
        return TagNode(self.members.get(name), f"{self.where}.{name}")

    def nodes(self, name: str) -> list[TagNode]:
        values = self.members.get(name)
        if not isinstance(values, list) or not values:
            raise self.refused(name, "a non-empty array of objects")
        return [TagNode(one, f"{self.where}.{name}[{i}]") for i, one in enumerate(values)]

    def text(self, name: str) -> str:
        value = self.members.get(name)
        if not isinstance(value, str) or not value:
            raise self.refused(name, "a non-empty string")
        return value

    def texts(self, name: str, *, may_be_empty: bool = False) -> list[str]:
        values = self.members.get(name, [] if may_be_empty else None)
        if (
            not isinstance(values, list)
            or not (values or may_be_empty)
            or not all(isinstance(one, str) and one for one in values)
        ):
            raise self.refused(name, "an array of non-empty strings")
        return values

    def flag(self, name: str) -> bool:
        value = self.members.get(name, False)
        if not isinstance(value, bool):
            raise self.refused(name, "a boolean")
        return value

    def number(self, name: str, least: int) -> int:
        value = self.members.get(name)
        if type(value) is not int or not least <= value <= MAX_REPEATS:
            raise self.refused(name, f"an integer from {least} to {MAX_REPEATS}")
        return value
