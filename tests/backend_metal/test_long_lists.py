"""Long lists of values are enforced at a cost that grows with their length, or are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend_metal.engine.grammar.compiler import MOST_LISTED, MOST_OPTIONS, GrammarCompiler
from deployments.backend import Grammar, InvalidRequestError
from tests.backend_metal.test_odd_schemas import FORMS, compiled, compiler, lets
from tests.support.deployments.call_templates import renderer

__all__ = ["compiler"]
TEXTS = [f"src/part_{number % 97}/{number}.py" for number in range(MOST_LISTED + 1000)]
OBJECTS = [{"number": number} for number in range(MOST_OPTIONS + 1)]


def with_list(keyword: str, values: list[Any]) -> dict[str, Any]:
    listed = values if keyword == "enum" else [{"const": value} for value in values]
    return {"type": "object", "properties": {"x": {keyword: listed}}, "required": ["x"]}


def called(form: tuple[str, int], value: Any) -> str:
    return renderer(*form)([{"name": "t", "arguments": {"x": value}}])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_each_of_many_values_may_come_and_no_other(
    compiler: GrammarCompiler, form: tuple[str, int]
) -> None:
    one = compiled(compiler, form[0], {"t": with_list("enum", TEXTS)}, choice="required")
    assert one.left_out == ()
    for value in (TEXTS[0], TEXTS[-1]):
        assert lets(compiler, one, called(form, value))
    assert not lets(compiler, one, called(form, f"{TEXTS[0]}c"))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_grammar_grows_with_its_list(
    compiler: GrammarCompiler, form: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a native parser would compare with each other is one terminal."""
    sources: list[int] = []
    given = GrammarCompiler.compile

    def compile_counted(self: GrammarCompiler, grammar: Grammar, *more: Any) -> Any:
        sources.append(len(grammar.text))
        return given(self, grammar, *more)

    monkeypatch.setattr(GrammarCompiler, "compile", compile_counted)
    for values in (TEXTS[:500], TEXTS[:1000], TEXTS[:2000]):
        compiled(compiler, form[0], {"t": with_list("enum", values)}, choice="required")
    first, second, third = sources
    assert third - second < 2.1 * (second - first)


@pytest.mark.parametrize(
    ("keyword", "values"),
    [("enum", OBJECTS), ("anyOf", OBJECTS), ("oneOf", TEXTS)],
    ids=["enum", "anyOf", "oneOf"],
)
def test_lists_that_are_compared_are_bounded(
    compiler: GrammarCompiler, keyword: str, values: list[Any]
) -> None:
    schema = with_list(keyword, values)
    with pytest.raises(InvalidRequestError) as refused:
        compiler.compile(Grammar("json_schema", json.dumps(schema), "schema"))
    assert f'schema.properties.x: keyword "{keyword}" can\'t be enforced' in str(refused.value)
    schemas = {"t": schema, "fine": with_list("enum", ["a"])}
    one = compiled(compiler, "hermes", schemas, choice="required")
    assert lets(compiler, one, called(("hermes", 0), "any"))
    assert one.left_out[0].startswith("t.properties.x.")
