"""A matcher that is spared free text allows what one that takes every token does."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from backend_metal.engine.grammar.free_text import FreeTextReader
from backend_metal.engine.grammar.guide import Guide
from backend_metal.engine.grammar.masks import HeldRow, MaskFiller
from backend_metal.engine.grammar.matcher import GrammarMatcher
from backend_metal.engine.grammar.matcher_pool import MatcherPool
from backend_metal.engine.grammar.words import Ints
from deployments.backend import FreeText
from deployments.protocol.chat_formats.formats import FORMATS
from deployments.protocol.chat_formats.grammar import content_grammar, free_text, tools_grammar
from deployments.protocol.chat_formats.tool import Tool

TOOLS = [
    Tool("f", {"properties": {"a": {"type": "string"}}, "additionalProperties": False}),
    Tool("g", {"properties": {}, "additionalProperties": False}),
]
WORDS = ("Text.", " and", "ab", " <", "<b", "a<", "</", " [", "{", "\n\n", "é", "界", "x>")
ANSWERS = 12
NO_OUTPUT = np.zeros(0, np.int32)


class Vocabulary:
    """A token a byte, some words, an end, and special tokens."""

    def __init__(self, special: Sequence[str] = ()) -> None:
        self.alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        words = ["".join(piece for piece, _ in byte_level.pre_tokenize_str(w)) for w in WORDS]
        names = {name: index for index, name in enumerate([*self.alphabet, *words])}
        tokenizer = Tokenizer(models.BPE(names, []))
        tokenizer.add_special_tokens(["<end>", *special])
        tokenizer.pre_tokenizer = byte_level
        tokenizer.decoder = decoders.ByteLevel()
        self._special = dict(zip(range(len(names), 10_000), ["<end>", *special], strict=False))
        self.ids = {text: token_id for token_id, text in self._special.items()}
        self.native = LLTokenizer(tokenizer.to_str(), eos_token=[self.ids["<end>"]])

    def utf8(self, token_id: int) -> bytes:
        text = self._special.get(token_id)
        return self.native.decode_bytes([token_id]) if text is None else text.encode()

    def spelled(self, text: str) -> list[int]:
        """In words where there are any, and by special tokens."""
        if text in self.ids:
            return [self.ids[text]]
        by_text = {word: len(self.alphabet) + index for index, word in enumerate(WORDS)}
        return [by_text[text]] if text in by_text else list(self.native.tokenize_str(text))


class Spared:
    def __init__(
        self, words: Vocabulary, matcher: LLMatcher, free: FreeText, end: str = ""
    ) -> None:
        self._filler = MaskFiller(MatcherPool(1))
        self._num_tokens = words.native.vocab_size
        reader = FreeTextReader(words.native, {words.ids["<end>"]}, free, end)
        self.guide = Guide(words.utf8, GrammarMatcher(matcher, "g", reader))

    def mask(self) -> Ints:
        held = HeldRow(0, self.guide, None, NO_OUTPUT)
        return self._filler.fill([held], self._num_tokens).words[0]


def drawn(
    words: Vocabulary, mask: Ints, wanted: list[int], pieces: list[str], lot: random.Random
) -> int:
    """A token that may come: such that the answer is made of ``pieces`` where it can be."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    if not wanted:
        wanted += words.spelled(lot.choice(pieces))
    if bits[wanted[0]]:
        return wanted.pop(0)
    wanted.clear()
    return int(lot.choice(np.flatnonzero(bits)))


def compare(
    words: Vocabulary, grammar: str, free: FreeText, pieces: list[str], end: str = ""
) -> Iterator[int]:
    """How many tokens the matcher was spared, of each of some answers."""
    first = LLMatcher(words.native, grammar)
    assert not first.is_error(), first.get_error()
    for seed in range(ANSWERS):
        lot = random.Random(seed)
        oracle, spared = first.deep_copy(), Spared(words, first.deep_copy(), free, end)
        wanted: list[int] = []
        num_spared = 0
        for number in range(90):
            mask = spared.mask()
            whole = np.frombuffer(oracle.compute_bitmask(), np.int32)[: len(mask)]
            assert np.array_equal(mask, whole), (seed, number)
            token_id = drawn(words, mask, wanted, pieces, lot)
            if token_id == words.ids["<end>"]:
                break
            num_spared += spared.guide.moved_by(token_id) is None
            assert oracle.consume_token(token_id)
            spared.guide.advance(token_id)
            assert spared.guide.is_complete == oracle.is_stopped()
            if oracle.is_stopped():
                break
        yield num_spared


def pieces_of(name: str) -> list[str]:
    chat_format = FORMATS[name]
    form = chat_format.calls[0]
    marks = [form.start, form.end, *chat_format.wrappers, *(chat_format.thinking or ())]
    cut = [mark[: len(mark) // 2] for mark in marks]
    return [*filter(None, [*marks, *cut]), *WORDS * 2]


WITH_CALLS = sorted(name for name, one in FORMATS.items() if one.calls)


@pytest.mark.parametrize("are_special", [False, True])
@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("ends_thoughts", [False, True])
@pytest.mark.parametrize("name", WITH_CALLS)
def test_answers_that_may_call_tools(
    name: str, required: bool, are_special: bool, ends_thoughts: bool
) -> None:
    chat_format = FORMATS[name]
    marks = {chat_format.calls[0].start, *chat_format.wrappers, *(chat_format.thinking or ())}
    words = Vocabulary(sorted(marks - {""}) if are_special else ())
    grammar = tools_grammar(
        chat_format,
        TOOLS,
        required=required,
        parallel=True,
        special_tokens=words.ids,
        ends_thoughts=ends_thoughts,
    )
    free = free_text(chat_format, words.ids, is_answer=not required, ends_thoughts=ends_thoughts)
    counts = list(compare(words, grammar, free, pieces_of(name)))
    if free.marker or (free.thought and required):
        assert sum(counts) > 5


@pytest.mark.parametrize("are_special", [False, True])
@pytest.mark.parametrize("name", [one for one in WITH_CALLS if FORMATS[one].thinking])
def test_thoughts_before_what_must_match(name: str, are_special: bool) -> None:
    chat_format = FORMATS[name]
    assert chat_format.thinking is not None
    words = Vocabulary(chat_format.thinking if are_special else ())
    frame = content_grammar(chat_format, words.ids).replace("@content", '"{" /[a-z]{1,9}/ "}"')
    free = free_text(chat_format, words.ids, is_answer=False)
    pieces = [*pieces_of(name), "{"]
    assert sum(compare(words, frame, free, pieces)) > 20


def test_a_thought_that_the_prompt_has_begun() -> None:
    words = Vocabulary()
    grammar = (
        'start: THOUGHT WHITE? /[a-z]+/\nWHITE: /[ \\n]{1,8}/\nTHOUGHT: TEXT "</t>"\n'
        r"TEXT: /(?s:.*)/ & ~/(?s:.*)(<\/t>)(?s:.*)/"
    )
    pieces = ["</t>", "</", *WORDS]
    counts = list(compare(words, grammar, FreeText(), pieces, "</t>"))
    assert sum(counts) > 20
