"""Answers that were preempted, and went on elsewhere, are those that they would have been, and
match. ``make test-schemas`` has a thousand requests of these."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import jsonschema
import pytest

from backend_metal.engine.engine import Engine
from tests.support.backend_metal.schema_outputs import campaign as module
from tests.support.backend_metal.schema_outputs.bounded import bounded
from tests.support.backend_metal.schema_outputs.campaign import Engines, campaign
from tests.support.backend_metal.schema_outputs.cases import WAYS, Case, generated
from tests.support.backend_metal.schema_outputs.generated import schema_of
from tests.support.backend_metal.schema_outputs.judge import problem_of

FIRST = list(islice(generated(), 24))


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("model"))


def test_every_answer_matches_and_is_the_same_elsewhere(engines: Engines) -> None:
    report = campaign(engines, FIRST)
    assert report.problems == []
    assert (report.answers, report.refused) == (32, 0)
    assert report.ended >= 0.9 * report.answers
    assert report.resumed >= 0.9 * len(FIRST)
    assert report.preemptions >= 5


def test_they_are_drawn_in_every_way_for_one_answer_and_for_two() -> None:
    ways = {(case.number % len(WAYS), case.n) for case in FIRST}
    assert ways == {(way, n) for way in range(len(WAYS)) for n in (1, 2)}


def test_what_goes_on_otherwise_is_told(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    add_request = Engine.add_request

    def with_another_seed(engine: Engine, request: Any, *args: Any, **kwargs: Any) -> Any:
        if engine is engines.second:
            request = replace(request, sampling=replace(request.sampling, seed=7))
        return add_request(engine, request, *args, **kwargs)

    monkeypatch.setattr(Engine, "add_request", with_another_seed)
    report = campaign(engines, FIRST[:8])
    assert any("elsewhere" in problem for problem in report.problems)


def test_what_does_not_match_is_told(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = {"required": ["b"]}
    monkeypatch.setattr(module, "problem_of", lambda schema, text: problem_of(strict, text))
    schema = bounded({"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}})
    report = campaign(engines, [Case(number, schema) for number in range(4)])
    assert report.ended > 0
    assert len(report.problems) == report.ended
    assert "'b' is a required property" in report.problems[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"b": "2026-02-28"}', ""),
        ('{"b": "2026-02-28"', "is no JSON: "),
        ('{"b": "2026-02-30"}', "does not match at $.b: '2026-02-30' is not a 'date'"),
        ('{"b": "0000-02-29"}', ""),
        ("[]", "does not match at $: [] is not of type 'object'"),
    ],
)
def test_what_a_schema_says_of_a_text(text: str, problem: str) -> None:
    schema = {"type": "object", "properties": {"b": {"format": "date"}}, "required": ["b"]}
    found = problem_of(schema, text)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_a_schema_that_can_not_be_enforced_is_counted(engines: Engines) -> None:
    report = campaign(engines, [Case(1, {"type": "array", "uniqueItems": True}), FIRST[0]])
    assert (report.refused, report.answers, report.problems) == (1, 1, [])


def test_schemas_are_of_many_shapes() -> None:
    def keywords(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(keywords, value))
        if isinstance(value, dict):
            return {*value}.union(*map(keywords, value.values()))
        return set()

    schemas = [schema_of(number) for number in range(300)]
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
    assert keywords(schemas) >= {
        *("type", "enum", "const", "pattern", "format", "minLength", "maxLength", "multipleOf"),
        *("minimum", "maximum", "required", "additionalProperties", "patternProperties"),
        *("prefixItems", "minItems", "maxItems", "anyOf", "oneOf", "allOf", "$ref", "$defs"),
    }
    assert schemas[7] == schema_of(7)


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"type": "string"}, {"type": "string", "maxLength": 8}),
        ({"type": "string", "minLength": 12}, {"type": "string", "minLength": 12, "maxLength": 12}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        (
            {"anyOf": [{"type": "array", "items": {"type": "string"}}]},
            {
                "anyOf": [
                    {
                        "type": "array",
                        "items": {"type": "string", "maxLength": 8},
                        "maxItems": 2,
                    }
                ]
            },
        ),
        (
            {"type": "object", "properties": {"type": {"type": "array"}, "x": True}},
            {
                "type": "object",
                "properties": {"type": {"type": "array", "maxItems": 2}, "x": True},
                "additionalProperties": False,
            },
        ),
    ],
)
def test_bounds_are_set_where_there_are_none(schema: Any, made: Any) -> None:
    assert bounded(schema) == made
