"""What shows that a field is honoured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Shown:
    """An answer with ``value`` for the field differs from one without it. ``beside``: members of
    the field's object in both requests; ``around``: fields of both. ``told``: the member of a
    response that tells it back; None: what was made differs."""

    value: Any
    beside: Fields = field(default_factory=dict)
    around: Fields = field(default_factory=dict)
    told: str | None = None


@dataclass(frozen=True)
class Kind:
    """It says of what kind its object is: another word is refused. ``beside``: as above."""

    beside: Fields = field(default_factory=dict)


@dataclass(frozen=True)
class Elsewhere:
    """By a test of that file and name, since it takes more than two answers of such a model."""

    file: str
    test: str


Shows = Mapping[str, Shown | Kind | Elsewhere]


@dataclass(frozen=True)
class Table:
    """Of the document of fields."""

    path: str
    """Of requests that have such objects."""
    fields: Fields
    """Of such an object in every request."""
    shows: Shows
    around: Fields = field(default_factory=dict)
    """Fields of every request."""
    placed: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """The fields of a request that has such an object; None: it is the request itself."""

    def request(self, beside: Fields, around: Fields, **fields: Any) -> dict[str, Any]:
        """With ``fields`` of such an object."""
        one = {**self.fields, **beside, **fields}
        outer = one if self.placed is None else self.placed(one)
        return {"model": "demo", **self.around, **around, **outer}
