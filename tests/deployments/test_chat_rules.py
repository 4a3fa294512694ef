"""Rules of grammars: text up to the first of some ends."""

from __future__ import annotations

import re
from itertools import product

import pytest
from llguidance import LLMatcher, LLTokenizer

from deployments.protocol.chat_formats.regex import without
from deployments.protocol.chat_formats.rules import LONGEST_SPELLED, Rules
from tests.support.deployments.chat_grammars import vocabulary_with

PIECES = ("a", "\n", "<", "</p>", "</q>", "p>")


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    return vocabulary_with([])


def grammar_of(*ends: str) -> str:
    rules = Rules({})
    rules.add("start", rules.until("value", *ends))
    return str(rules)


@pytest.mark.parametrize(
    "ends", [("</p>",), ("\n</p>", "</p>"), ("</p>", "\n</p>"), ("</p>", "</q>"), ("a<", "<", "\n")]
)
def test_text_ends_with_the_first_of_its_ends(
    vocabulary: LLTokenizer, ends: tuple[str, ...]
) -> None:
    grammar = LLMatcher.grammar_from_lark(grammar_of(*ends))
    fresh = LLMatcher(vocabulary, grammar)
    assert not fresh.is_error(), fresh.get_error()
    first = re.compile(f"(?s:.*?)({'|'.join(map(re.escape, ends))})")
    for pieces in product(PIECES, repeat=3):
        text = "".join(pieces)
        found = first.match(text)
        matcher = fresh.deep_copy()
        taken = matcher.try_consume_tokens(vocabulary.tokenize_str(text))
        assert text.encode()[:taken].decode() == (found.group() if found else text)
        assert matcher.is_accepting() == (found is not None), text


def test_an_end_that_ends_with_another_one_costs_nothing() -> None:
    assert grammar_of("\n</p>", "</p>") == grammar_of("</p>")
    assert grammar_of("</p>", "</q>") != grammar_of("</p>")


def test_an_end_that_is_a_token_needs_nothing_before_it() -> None:
    rules = Rules({"</p>": 7})
    rules.add("start", rules.until("value", "\n</p>", "</p>"))
    vocabulary = vocabulary_with(["</p>"])
    (end,) = vocabulary.tokenize_str("</p>", parse_special=True)
    grammar = str(rules).replace("<[7]>", f"<[{end}]>")
    for text in ("", "a", "a\n"):
        matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar))
        tokens = [*vocabulary.tokenize_str(text), end]
        assert matcher.try_consume_tokens(tokens) == len(tokens)
        assert matcher.is_accepting()


@pytest.mark.parametrize(
    "marker",
    [
        "a",
        "ab",
        "aa",
        "aab",
        "abab",
        "aabaab",
        "abcab",
        "abac",
        "^]-",
        "\\/&",
        "<<|",
        "[~[",
        "é\n",
        "\r\n",
    ],
)
def test_an_expression_of_texts_without_a_marker_matches_just_those(
    vocabulary: LLTokenizer, marker: str
) -> None:
    """For Python, which finds what is expressed, and for llguidance, whose notation it is."""
    expression = re.compile(without(marker))
    lexer = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(f"start: /{without(marker)}/"))
    assert not lexer.is_error(), lexer.get_error()
    characters = sorted({*marker, "z"})
    for length in range(7 if len(characters) < 4 else 5):
        for text in map("".join, product(characters, repeat=length)):
            assert bool(expression.fullmatch(text)) == (marker not in text), text
            if length < 5:
                tokens = vocabulary.tokenize_str(text)
                taken = lexer.deep_copy().try_consume_tokens(tokens) if tokens else 0
                assert (taken == len(tokens)) == (marker not in text), text


def test_a_long_marker_is_not_spelled_out() -> None:
    """What clients name as such has no other bound than their body's."""
    for length in (LONGEST_SPELLED, LONGEST_SPELLED + 1, 100_000):
        rules = Rules({})
        rules.free("FREE", "ab" * (length // 2) + "a" * (length % 2))
        assert ("~" in str(rules)) == (length > LONGEST_SPELLED)
        assert len(str(rules)) < 3 * length + 20_000
