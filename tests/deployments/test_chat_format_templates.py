"""Whatever a family's template writes for a call, its grammar lets, and it is read as it was."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from deployments.protocol.chat_formats.formats import FORMATS
from deployments.protocol.chat_formats.grammar import tools_grammar
from deployments.protocol.chat_formats.reader import AnswerReader
from deployments.protocol.chat_formats.tool import Tool
from deployments.protocol.tools import Function
from tests.support.deployments.call_templates import FAMILIES, renderer
from tests.support.deployments.chat_answers import parts_of
from tests.support.deployments.chat_grammars import vocabulary_with
from tests.support.fuzzing import EVERY_EXAMPLE
from tests.support.instantiations import marked

BFCL = Path(__file__).parent / "recorded" / "bfcl_tools.jsonl"
TEXT, NULL, COUNT = {"type": "string"}, {"type": "null"}, {"type": "integer", "maximum": 99}
DEFINITIONS: dict[str, Any] = {
    "Mode": {"enum": ["on", "off"], "title": "Mode", "type": "string"},
    "Place": {
        "properties": {
            "name": TEXT,
            "at": {"anyOf": [{"type": "number"}, NULL], "default": None},
            "Also": {"anyOf": [{"$ref": "#/$defs/Place"}, NULL]},
        },
        "required": ["name"],
        "title": "Place",
        "type": "object",
    },
}
MODE, PLACE = {"$ref": "#/$defs/Mode"}, {"$ref": "#/$defs/Place"}
KINDS: dict[str, Any] = {
    "optional": {"anyOf": [TEXT, NULL], "default": None},
    "types": {"type": ["string", "null"]},
    "union": {"anyOf": [TEXT, COUNT]},
    "one_of": {"oneOf": [{"type": "boolean"}, TEXT]},
    "number": {"anyOf": [{"type": "number"}, NULL]},
    "flag": {"anyOf": [{"type": "boolean"}, NULL], "default": None},
    "reference": MODE,
    "optional_reference": {"anyOf": [MODE, NULL], "default": None},
    "all_of": {"allOf": [MODE], "default": "on"},
    "const": {"const": "only", "type": "string"},
    "enum": {"enum": ["1", 2, None, True, "a b"]},
    "literal": {"anyOf": [{"const": "x", "type": "string"}, {"enum": [1, 2], "type": "integer"}]},
    "model": PLACE,
    "model_or_text": {"anyOf": [PLACE, TEXT]},
    "models": {"items": PLACE, "type": "array"},
    "texts": {"anyOf": [{"items": TEXT, "type": "array"}, TEXT]},
    "anything": {},
    "annotated": {"title": "Anything", "description": "Anything."},
    "free": {"type": "object"},
    "map": {"additionalProperties": {"anyOf": [TEXT, COUNT]}, "type": "object"},
    "map_of_lists": {"additionalProperties": {"items": COUNT, "type": "array"}, "type": "object"},
    "open": {"additionalProperties": True, "properties": {"b": TEXT}, "type": "object"},
    "list": {"type": "array"},
    "pair": {"maxItems": 2, "minItems": 2, "prefixItems": [TEXT, COUNT], "type": "array"},
    "few": {"items": COUNT, "maxItems": 3, "minItems": 1, "type": "array"},
    "text": {"maxLength": 40, "type": "string"},
}
SAMPLES = ("", "hello", "5th Avenue", "a, b: {c}", "é\n\nß", "\nx\n", "<b>", "x ]} )", "Nullable")
NAMES = ("a", "New York", "k-1", "é", "b")
GROUP, TRIES = 4, 6 if EVERY_EXAMPLE else 3


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    return vocabulary_with([])


def value_of(schema: Any, root: Any, rng: random.Random, depth: int = 0) -> Any:
    """One at random that is valid."""
    if not isinstance(schema, dict):
        schema = {}
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            # What nests comes to an end.
            options = schema[keyword][-1:] if depth > 3 else schema[keyword]
            return value_of(rng.choice(options), root, rng, depth)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kinds = schema.get("type", ["string", "integer", "boolean", "null", "array", "object"])
    if not isinstance(kinds, str):
        kinds = rng.choice(kinds[:4] if depth > 2 else kinds)
    match kinds:
        case "string":
            return rng.choice(SAMPLES)
        case "integer":
            return rng.randint(0, min(99, schema.get("maximum", 99)))
        case "number":
            return rng.choice([0.5, -3.25, 7, 1e-07, 1e22])
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
        case "array":
            first = schema.get("prefixItems", [])
            others = 0 if first else rng.randint(schema.get("minItems", 0), 3)
            items = [*first, *[schema.get("items", {})] * others]
            return [value_of(one, root, rng, depth + 1) for one in items]
    members = {
        name: value_of(one, root, rng, depth + 1)
        for name, one in schema.get("properties", {}).items()
        if name in schema.get("required", ()) or rng.random() < 0.5
    }
    others = schema.get("additionalProperties", "properties" not in schema)
    if others is not False:
        free = [name for name in NAMES if name not in schema.get("properties", {})]
        for name in rng.sample(free, rng.randint(0, 2)):
            members.setdefault(name, value_of(others, root, rng, depth + 1))
    return members


class Family:
    """One that calls one tool."""

    def __init__(self, vocabulary: LLTokenizer, family: tuple[str, int], tool: Tool) -> None:
        self._format = FORMATS[family[0]]
        self._render = renderer(*family)
        self._vocabulary = vocabulary
        self._tool = tool
        grammar = tools_grammar(self._format, [tool], required=True, parallel=False)
        self._matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar))
        assert not self._matcher.is_error(), self._matcher.get_error()

    def check(self, value: Any) -> None:
        jsonschema.validate(value, {"type": "object", **self._tool.parameters})
        text = self._render([{"name": self._tool.name, "arguments": value}])
        matcher, tokens = self._matcher, self._vocabulary.tokenize_str(text)
        matcher.reset()
        taken = matcher.try_consume_tokens(tokens)
        assert taken == len(tokens), (text.encode()[:taken].decode(errors="replace"), text)
        assert matcher.is_accepting(), text
        reader = AnswerReader(self._format, tools={self._tool.name: self._tool})
        ((called, arguments),), said = parts_of([*reader.feed(text), *reader.finish()])
        assert (called, json.loads(arguments)) == (self._tool.name, value), text
        assert not any(said.values())


@pytest.mark.parametrize(
    ("family", "is_strict"),
    marked(
        itertools.product(FAMILIES, [False, True]),
        lambda family, is_strict: not is_strict or FAMILIES.index(family) % 3 == 0,
    ),
    ids=str,
)
def test_arguments_of_every_kind_come_back(
    vocabulary: LLTokenizer, family: tuple[str, int], is_strict: bool
) -> None:
    rng = random.Random(str(family))
    kinds = [one for one in KINDS.items() if not is_strict or one[0] != "text"]
    rng.shuffle(kinds)
    for start in range(0, len(kinds), GROUP):
        parameters = {"type": "object", "$defs": DEFINITIONS, "required": [kinds[start][0]]}
        parameters["properties"] = dict(kinds[start : start + GROUP])
        one = Family(vocabulary, family, Tool("f.g", parameters, is_strict))
        for _ in range(TRIES):
            one.check(value_of(parameters, parameters, rng))


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_parameters_that_no_schema_names_come_back(
    vocabulary: LLTokenizer, family: tuple[str, int]
) -> None:
    rng = random.Random(str(family))
    is_python = family[0] in ("pythonic", "olmo3", "lfm2")
    for others in (True, {}, COUNT, KINDS["optional"]):
        parameters = {"properties": {"y": TEXT}, "additionalProperties": others}
        one = Family(vocabulary, family, Tool("f", parameters))
        for _ in range(3):
            names = rng.sample(["x", "y_1", "z"] if is_python else NAMES, 2)
            others_of = {name: value_of(others, {}, rng) for name in names}
            one.check({"y": "text"} | others_of)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_arguments_of_real_tools_come_back(
    vocabulary: LLTokenizer, family: tuple[str, int]
) -> None:
    rng = random.Random(str(family))
    for line in BFCL.read_text().splitlines()[:: len(FAMILIES)]:
        tool = Function.parse(json.loads(line)).as_called()
        Family(vocabulary, family, tool).check(value_of(tool.parameters, tool.parameters, rng))
