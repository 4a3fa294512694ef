"""Each row of the reference of fields is what happens to a request that has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

import deployments.gateway.openapi  # noqa: F401  loads every model
from deployments.protocol.dropped import dropped_names
from deployments.protocol.field_rules import Refused, WithoutEffect
from deployments.protocol.strict import RefusedError, StrictModel
from ops.api_reference import DOCUMENT, reference

NOTHING_ALLOWED = [[["x"]]]
"""No field takes it, but one that is an array of anything."""


def models() -> list[type[StrictModel]]:
    def below(model: type[StrictModel]) -> Iterator[type[StrictModel]]:
        for one in model.__subclasses__():
            yield one
            yield from below(one)

    found = {one for one in below(StrictModel) if one.__module__.startswith("deployments.")}
    return sorted(found, key=lambda one: (one.__module__, one.__name__))


def rules(kind: type[Refused] | type[WithoutEffect]) -> list[Any]:
    return [
        pytest.param(model, name, rule, id=f"{model.__name__}.{name}")
        for model in models()
        for name, rule in model.unsupported.items()
        if isinstance(rule, kind)
    ]


def complaints(model: type[StrictModel], name: str, value: Any) -> list[str]:
    """What is said of a field with that value; of others that lack nothing."""
    try:
        model.model_validate({name: value})
    except ValidationError as error:
        found = []
        for one in error.errors(include_url=False):
            cause = one.get("ctx", {}).get("error")
            where = cause.where if isinstance(cause, RefusedError) else ""
            path = "".join(f".{part}" for part in one["loc"]) + where
            if path == f".{name}" or path.startswith((f".{name}.", f".{name}[")):
                found.append(str(cause or one["msg"]))
        return found
    return []


def test_the_document_is_the_current_reference() -> None:
    assert DOCUMENT.read_text() == reference(), "run: python -m ops.api_reference --write"


def test_every_field_of_every_model_has_a_row() -> None:
    rows = {line.split("`")[1] for line in reference().splitlines() if line.startswith("| `")}
    shown = [model for model in models() if f"### {model.__name__}\n" in reference()]
    assert len(shown) > 30
    for model in shown:
        assert rows >= model.wire_fields().keys() | model.unsupported.keys(), model


@pytest.mark.parametrize(("model", "name", "rule"), rules(WithoutEffect))
def test_what_is_accepted_is_named_where_its_value_says_nothing(
    model: type[StrictModel], name: str, rule: WithoutEffect
) -> None:
    for value, told in ((None, []), (NOTHING_ALLOWED, [name])):
        with dropped_names() as dropped:
            assert complaints(model, name, value) == []
        assert [*dropped] == told
    assert rule.why


@pytest.mark.parametrize(("model", "name", "rule"), rules(Refused))
def test_what_is_refused_is_named(model: type[StrictModel], name: str, rule: Refused) -> None:
    for value in (None, *rule.neutral):
        assert complaints(model, name, value) == []
    [said] = complaints(model, name, NOTHING_ALLOWED)
    assert said.startswith("is not supported")
    assert rule.why


@pytest.mark.parametrize(
    ("model", "name"),
    [
        pytest.param(model, name, id=f"{model.__name__}.{name}")
        for model in models()
        for name in model.wire_fields()
    ],
)
def test_what_is_honoured_is_not_taken_for_anything(model: type[StrictModel], name: str) -> None:
    with dropped_names() as dropped:
        said = [complaints(model, name, value) for value in (NOTHING_ALLOWED, {"such": []})]
    assert any(said) or dropped
