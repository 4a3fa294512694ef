"""A grammar that would run over the stack, or over what llguidance may spend, is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend_metal import LLM  # isort: skip
from backend_metal.engine.grammar.compiler import LIMITS, GrammarCompiler
from backend_metal.engine.grammar.depth import (
    MAX_RULE_LEVELS,
    MAX_SCHEMA_LEVELS,
    rule_levels,
    schema_levels,
    schemas_in_rules,
)
from backend_metal.engine.grammar.refusals import COMPILE_WORK, MAX_SEARCH_WORK, describe
from deployments.backend import Grammar, InvalidRequestError, SchemaPart
from tests.support.backend_metal import tiny_models

FIELD = "response_format.json_schema.schema"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    path: Path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)
    return LLM(str(path), num_kv_blocks=16, max_num_seqs=2, device="cpu").engine.grammars


def chain(length: int, around: Any) -> dict[str, Any]:
    """Each definition refers to the next one; ``around`` puts a reference into a schema."""
    definitions = {
        f"n{number}": around({"$ref": f"#/$defs/n{number + 1}"}) for number in range(length)
    }
    return {"$ref": "#/$defs/n0", "$defs": {**definitions, f"n{length}": {"type": "null"}}}


WRITTEN: dict[str, Any] = {
    "properties": lambda one: {"type": "object", "properties": {"a": one}},
    "items": lambda one: {"type": "array", "items": one},
    "anyOf": lambda one: {"anyOf": [one, {"type": "string"}]},
    "allOf": lambda one: {"allOf": [one]},
}


def rules(length: int, body: str) -> str:
    below = (f"\nr{number}: {body.format(f'r{number + 1}')}" for number in range(length))
    return f'start: r0{"".join(below)}\nr{length}: "z"'


@pytest.mark.parametrize("how", WRITTEN)
def test_references_that_are_too_deep_are_refused(compiler: GrammarCompiler, how: str) -> None:
    """A tenth of that ended the process."""
    schema = chain(10_000, WRITTEN[how])
    with pytest.raises(InvalidRequestError, match=f"{MAX_SCHEMA_LEVELS} levels deep") as caught:
        compiler.compile(Grammar("json_schema", json.dumps(schema), FIELD))
    assert caught.value.param == FIELD
    compiler.compile(Grammar("json_schema", json.dumps(chain(200, WRITTEN[how])), FIELD))


def test_so_are_those_of_a_tool_and_of_a_schema_among_rules(compiler: GrammarCompiler) -> None:
    schema = chain(10_000, WRITTEN["properties"])
    param = "tools[0].function.parameters"
    part = SchemaPart(param, schema, is_lenient=True)
    for grammar in (
        Grammar("grammar", f"start: %json {json.dumps(schema)}", param, parts=(part,)),
        Grammar("grammar", f"start: %json {json.dumps(schema)}", param),
    ):
        with pytest.raises(InvalidRequestError, match="levels deep") as caught:
            compiler.compile(grammar)
        assert caught.value.param == param


@pytest.mark.parametrize("body", ['"a" {}', '{0} "b" | "a" {0}', "{}", '("a" | {})*'])
def test_rules_that_are_too_deep_are_refused(compiler: GrammarCompiler, body: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{MAX_RULE_LEVELS} levels deep") as caught:
        compiler.compile(Grammar("grammar", rules(10_000, body), "guided_grammar"))
    assert caught.value.param == "guided_grammar"
    compiler.compile(Grammar("grammar", rules(100, body), "guided_grammar"))


def test_levels_are_counted_through_references() -> None:
    assert schema_levels(True) == 0
    assert schema_levels({}) == 1
    assert schema_levels({"items": {"items": {}}}) == 3
    # Its definitions, one of them and what that holds; then the other one.
    pair = {"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"items": {"items": {}}}}}
    assert schema_levels({"$ref": "#/$defs/a", **pair}) == 2 + 2 + 3
    wide = {"$defs": {f"n{number}": {"items": {}} for number in range(5000)}}
    wide["anyOf"] = [{"$ref": f"#/$defs/n{number}"} for number in range(5000)]  # type: ignore[assignment]
    assert schema_levels(wide) < 10
    for length in (10, 100):
        assert schema_levels(chain(length, WRITTEN["items"])) >= 2 * length
    assert schema_levels({"items": {"$ref": "#"}}) == 2
    assert rule_levels("start: a\na: b | c\nb: c\nc: X\nX: /a/") == 5
    assert rule_levels("start: a\na: b\nb: a") == 3
    assert [*schemas_in_rules('start: %json {"a": 1} x\nx: %json {"b"')] == [{"a": 1}]


def test_names_do_not_hide_references() -> None:
    """Where a schema is named in the middle, the same reference means two things."""
    definitions = {
        f"n{number}": {
            "$id": f"https://example.org/{number}",
            "items": {"$ref": f"https://example.org/{number + 1}"},
        }
        for number in range(1000)
    }
    named = {"$ref": "https://example.org/0", "$defs": definitions}
    assert schema_levels(named) > MAX_SCHEMA_LEVELS


def test_a_schema_that_grows_when_it_is_read_is_refused_where_it_does(
    compiler: GrammarCompiler,
) -> None:
    """By llguidance's own count of what it does, which is the same on every machine."""
    for limit in (
        LIMITS.initial_lexer_fuel,
        LIMITS.step_lexer_fuel,
        LIMITS.max_grammar_size,
        LIMITS.step_max_items,
        LIMITS.max_lexer_states,
    ):
        assert 0 < limit <= 1_000_000

    # Each level has twice the alternatives of the one below.
    doubled = {
        f"n{number}": {"allOf": [one, {"anyOf": [one, {"type": "null"}]}]}
        for number in range(18)
        for one in [{"$ref": f"#/$defs/n{number + 1}"}]
    }
    doubled["n18"] = {"anyOf": [{"type": "null"}, {"type": "string"}]}  # type: ignore[dict-item]
    schema = {"$ref": "#/$defs/n0", "$defs": doubled}
    with pytest.raises(InvalidRequestError, match="schema too large") as caught:
        compiler.compile(Grammar("json_schema", json.dumps(schema), FIELD))
    assert str(caught.value).startswith(f"{FIELD}.$defs.n")
    assert 'keyword "allOf"' in str(caught.value)
    assert caught.value.param == FIELD


def test_the_search_for_what_is_at_fault_compiles_so_much_and_no_more() -> None:
    """However long that takes: what it says then is what it has found so far."""
    compiled: list[str] = []

    def problem_of(schema: Any) -> str:
        compiled.append(json.dumps(schema))
        return "not today" if "last" in compiled[-1] else ""

    def refusal(num_properties: int) -> str:
        compiled.clear()
        properties: dict[str, Any] = {f"p{number}": {} for number in range(num_properties)}
        return describe({"items": {"properties": {**properties, "z": {"last": 1}}}}, problem_of)

    assert refusal(100) == '.items.properties.z: keyword "last" can\'t be enforced: not today'
    assert refusal(1000) == ".items can't be enforced: not today"
    work = sum(len(text) + COMPILE_WORK for text in compiled[1:])
    assert MAX_SEARCH_WORK - 2 * COMPILE_WORK < work <= MAX_SEARCH_WORK
