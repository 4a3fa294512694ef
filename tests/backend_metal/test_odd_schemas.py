"""One tool with an odd schema costs no other tool its call, in whichever form calls are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLParserLimits

from backend_metal import LLM  # isort: skip
from backend_metal.engine.grammar.compiler import GrammarCompiler
from backend_metal.engine.grammar.matcher import GrammarMatcher
from deployments.backend import SamplingParams
from deployments.protocol import parse_request, to_generation_requests
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.protocol.chat_formats.formats import FORMATS
from tests.support.backend_metal import tiny_models
from tests.support.deployments.call_templates import FAMILIES, renderer
from tests.support.deployments.odd_schemas import BASE, ODD, READ, VALUE, mutated, with_odd
from tests.support.fuzzing import EVERY_EXAMPLE

FORMS = [("hermes", 0), ("qwen3_coder", 1), ("deepseek_v3_2", 0), ("gemma4", 0), ("lfm2", 0)]
"""One of each kind: JSON, raw text with tags, that with the kind of each value, two notations."""
MUTATIONS = 2000 if EVERY_EXAMPLE else 150


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    path: Path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)
    return LLM(str(path), num_kv_blocks=16, max_num_seqs=2, device="cpu").engine.grammars


def asked(path: str, schemas: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A request with tools of these schemas, by their names."""
    said = [{"role": "user", "content": "x"}]
    match path:
        case "/v1/messages":
            tools = [{"name": name, "input_schema": one} for name, one in schemas.items()]
            body = {"max_tokens": 9, "messages": said}
        case "/v1/responses":
            tools = [{"name": n, "type": "function", "parameters": s} for n, s in schemas.items()]
            body = {"input": "x"}
        case _:
            functions = [{"name": n, "parameters": s, **fields} for n, s in schemas.items()]
            tools = [{"type": "function", "function": one} for one in functions]
            return {"model": "m", "tools": tools, "messages": said}
    return {"model": "m", "tools": [{**tool, **fields} for tool in tools], **body}


def compiled(
    compiler: GrammarCompiler,
    form: str,
    schemas: dict[str, Any],
    path: str = "/v1/chat/completions",
    choice: Any = None,
    **fields: Any,
) -> GrammarMatcher:
    body = asked(path, schemas, **fields) | ({"tool_choice": choice} if choice else {})
    parsed = parse_request(path, json.dumps(body).encode())
    (request,) = to_generation_requests(parsed.form, "r", SamplingParams(), Dialect(FORMATS[form]))
    for prompt in request.prompt.tools:  # type: ignore[union-attr]
        assert isinstance(prompt["function"]["parameters"].get("properties", {}), dict)
    assert request.sampling.grammar is not None
    return compiler.compile(request.sampling.grammar)


def lets(compiler: GrammarCompiler, one: GrammarMatcher, text: str) -> bool:
    matcher = one.copy().native
    tokens = compiler._vocabulary.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_is_odd_in_a_schema_lets_any_value_in_its_place(
    compiler: GrammarCompiler, form: tuple[str, int]
) -> None:
    text = renderer(*form)([{"name": "f", "arguments": VALUE}])
    assert lets(compiler, compiled(compiler, form[0], {"f": BASE}, choice="required"), text)
    for place, values in ODD.items():
        for value in values:
            schemas = {"f": with_odd(place, value)}
            one = compiled(compiler, form[0], schemas, choice="required")
            assert lets(compiler, one, text), (place, value)
            assert one.left_out, (place, value)
            assert all(name.startswith("f.") for name in one.left_out)
    for place, values in READ.items():
        for value in values:
            one = compiled(compiler, form[0], {"f": with_odd(place, value)}, choice="required")
            assert lets(compiler, one, text), (place, value)
            assert one.left_out == (), (place, value)


@pytest.mark.parametrize("seed", range(MUTATIONS))
def test_no_mutation_costs_another_tool_its_call(compiler: GrammarCompiler, seed: int) -> None:
    family = FAMILIES[seed % len(FAMILIES)]
    paths = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
    schemas = {"odd": mutated(seed), "fine": BASE}
    choice = {"/v1/messages": {"type": "any"}}.get(path := paths[seed % 3], "required")
    text = renderer(*family)([{"name": "fine", "arguments": VALUE}])
    for asks in (choice, None):
        one = compiled(compiler, family[0], schemas, path, asks)
        assert lets(compiler, one, text), schemas["odd"]
        assert all(name.startswith("odd.") for name in one.left_out)


@pytest.mark.parametrize("form", FORMS[:4], ids=str)
def test_tools_that_are_too_large_together_let_any_arguments(
    compiler: GrammarCompiler, form: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest do."""
    members = {f"m{number}": {"type": "array", "maxItems": 9} for number in range(100)}
    large = {"type": "object", "properties": members, "additionalProperties": False}
    schemas = {"one": large, "other": large, "fine": BASE}
    small = LLParserLimits(max_grammar_size=2400, verbose_errors=False)
    monkeypatch.setattr("backend_metal.engine.grammar.compiler.LIMITS", small)
    one = compiled(compiler, form[0], schemas, choice="required")
    assert one.left_out == ("one", "other")
    render = renderer(*form)
    assert lets(compiler, one, render([{"name": "fine", "arguments": VALUE}]))
    assert lets(compiler, one, render([{"name": "other", "arguments": {"any": "a"}}]))
    assert not lets(compiler, one, render([{"name": "fine", "arguments": VALUE | {"n": "a"}}]))
