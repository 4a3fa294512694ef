"""Which tokens a grammar takes for text: those that the tokenizer does."""

from __future__ import annotations

import json

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from backend_metal.engine.grammar.compiler import GrammarCompiler
from deployments.backend import Grammar, Thoughts
from deployments.protocol.chat_formats.formats import FORMATS
from deployments.protocol.chat_formats.grammar import tools_grammar
from deployments.protocol.chat_formats.tool import Tool
from tests.support.backend_metal import tokenizers_for_tests as tokenizers

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[ARGS]", "<é>")
"""Added, and yet text, as Qwen 3 has them."""
CONTROL = "<|control|>"
TOOL = Tool("f", {"type": "object", "properties": {}, "additionalProperties": False})
KINDS = ("byte_level", "byte_fallback")


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> TokenizerWrapper:
    inner = tokenizers.ALL[request.param]()._tokenizer
    fast = type(inner.backend_tokenizer).from_str(inner.backend_tokenizer.to_str())
    fast.add_tokens([AddedToken(one, normalized=False) for one in MARKERS])
    fast.add_special_tokens([CONTROL])
    return TokenizerWrapper(
        PreTrainedTokenizerFast(tokenizer_object=fast, eos_token=inner.eos_token)
    )


def compiler_of(tokenizer: TokenizerWrapper) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, len(tokenizer) + 7, {tokenizer.eos_token_id})


def ids(tokenizer: TokenizerWrapper, *texts: str) -> list[int]:
    found = tokenizer.convert_tokens_to_ids([*texts])
    assert all(isinstance(one, int) for one in found)
    return list(found)


def encoded(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    """Without the blank that some tokenizers put before any text."""
    first, *rest = tokenizer.encode(text, add_special_tokens=False)
    return rest if tokenizer.convert_ids_to_tokens(first) == "▁" else [first, *rest]


@pytest.mark.parametrize("marker", MARKERS)
def test_an_added_token_is_its_text(tokenizer: TokenizerWrapper, marker: str) -> None:
    [token_id] = ids(tokenizer, marker)
    choice = Grammar("choice", json.dumps([marker]), "guided_choice")
    matcher = compiler_of(tokenizer).compile(choice)
    matcher.advance(token_id)
    assert matcher.is_accepting


def test_a_special_token_is_none(tokenizer: TokenizerWrapper) -> None:
    [token_id] = ids(tokenizer, CONTROL)
    matcher = compiler_of(tokenizer).compile(Grammar("regex", "(?s:.*)", "guided_regex"))
    assert not matcher.native.validate_tokens([token_id])


def test_a_call_is_written_in_the_tokens_that_a_model_writes_it_in(
    tokenizer: TokenizerWrapper,
) -> None:
    text = tools_grammar(FORMATS["hermes"], [TOOL], required=True, parallel=False)
    matcher = compiler_of(tokenizer).compile(Grammar("grammar", text, "tools"))
    call = ["<tool_call>", '\n{"name": "f", "arguments": {}}\n', "</tool_call>"]
    written = ["<think>", "Hm.", "</think>", "\n\n", *call]
    token_ids = [token_id for one in written for token_id in encoded(tokenizer, one)]
    assert {*ids(tokenizer, *MARKERS[:4])} <= {*token_ids}
    for token_id in token_ids:
        matcher.advance(token_id)
    assert matcher.is_accepting


def test_what_is_forced_is_in_the_tokenizers_own_tokens(tokenizer: TokenizerWrapper) -> None:
    choice = json.dumps([f"<tool_call>f</tool_call>{CONTROL}<think>"])
    matcher = compiler_of(tokenizer).compile(Grammar("choice", choice, "guided_choice"))
    forced = matcher.forced()
    assert forced[0] == ids(tokenizer, "<tool_call>")[0]
    # What spells a special token isn't that.
    assert not {*forced} & {*ids(tokenizer, CONTROL)}
    for token_id in forced:
        matcher.advance(token_id)
    assert not matcher.forced()


def test_a_thought_of_the_prompt_ends_with_its_token(tokenizer: TokenizerWrapper) -> None:
    matcher = compiler_of(tokenizer).compile(
        Grammar("choice", '["yes"]', "guided_choice"),
        Thoughts("<think>", "</think>"),
        "assistant\n<think>\n",
    )
    for text in ("Hm.", "</think>", "yes"):
        for token_id in encoded(tokenizer, text):
            matcher.advance(token_id)
    assert matcher.is_accepting
