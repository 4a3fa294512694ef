"""Real tools in every form: grammars compile, and whatever they let is read as a valid call."""

from __future__ import annotations

import json
import random
from pathlib import Path

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from deployments.protocol.chat_formats.dialect import markers
from deployments.protocol.chat_formats.events import CallArguments, CallStart
from deployments.protocol.chat_formats.formats import FORMATS
from deployments.protocol.chat_formats.grammar import tools_grammar
from deployments.protocol.chat_formats.reader import AnswerReader
from deployments.protocol.tools import Function
from tests.support.deployments.chat_grammars import opening_of, vocabulary_with
from tests.support.fuzzing import EVERY_EXAMPLE

RECORDED = Path(__file__).parent / "recorded" / "bfcl_tools.jsonl"
TOOLS = [
    Function.parse(one).as_called() for one in map(json.loads, RECORDED.read_text().splitlines())
]
GROUP = 25
WITH_CALLS = sorted(name for name, one in FORMATS.items() if one.calls_tools)
MAX_BYTES = 6000


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    return vocabulary_with([])


@pytest.mark.parametrize("name", WITH_CALLS)
def test_whatever_a_grammar_of_real_tools_lets_is_a_valid_call(
    vocabulary: LLTokenizer, name: str
) -> None:
    draw = random.Random(name)
    ends = ["}", "]", ")", '"', "'"]
    if not FORMATS[name].has_messages:
        # Whose markers are no text.
        ends += markers(FORMATS[name])
    schemas = {tool.name: {"type": "object", **tool.parameters} for tool in TOOLS}

    by_name = {tool.name: tool for tool in TOOLS}
    # Each format has a third of the tools, and all formats together each tool several times.
    first, step = (0, 1) if EVERY_EXAMPLE else (WITH_CALLS.index(name) % 3, 3)
    for start in range(first * GROUP, len(TOOLS), step * GROUP):
        tools = TOOLS[start : start + GROUP]
        grammar = tools_grammar(FORMATS[name], tools, required=True, parallel=False)
        matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar))
        assert not matcher.is_error(), matcher.get_error()
        text = drawn(matcher, vocabulary, draw, opening_of(name), ends)
        reader = AnswerReader(FORMATS[name], tools=by_name)
        begun, *rest = [*reader.feed(text), *reader.finish()]
        assert isinstance(begun, CallStart), text
        arguments = "".join(event.json for event in rest if isinstance(event, CallArguments))
        assert all(isinstance(event, CallArguments) for event in rest), text
        assert begun.name in {tool.name for tool in tools}
        jsonschema.validate(json.loads(arguments), schemas[begun.name])


def drawn(
    matcher: LLMatcher, vocabulary: LLTokenizer, draw: random.Random, begun: str, ends: list[str]
) -> str:
    """A text at random that begins so; ``ends`` are what may end a part of it."""
    whole_ends = [vocabulary.tokenize_str(end) for end in ends]
    text = bytearray()
    chosen = vocabulary.tokenize_str(begun)
    while True:
        assert matcher.try_consume_tokens(chosen) == len(chosen)
        text += vocabulary.decode_bytes(chosen)
        if matcher.is_accepting():
            return text.decode()
        assert len(text) < MAX_BYTES, text
        chosen = draw.choice(whole_ends)
        if draw.random() < 0.5 or matcher.validate_tokens(chosen) < len(chosen):
            mask = matcher.compute_bitmask()
            chosen = [draw.choice([i for i in range(256) if mask[i // 8] >> i % 8 & 1])]
