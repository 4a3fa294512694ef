"""Incremental text against the text of all tokens at once, with real tokenizers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from backend_metal.engine.text.decode import decoder_of
from backend_metal.engine.text.detokenizer import IncrementalDetokenizer
from backend_metal.engine.text.stop import StopMatcher
from backend_metal.engine.text.token_text import TokenText
from tests.support.backend_metal import tokenizers_for_tests as tokenizers
from tests.support.fuzzing import fuzz

REPLACEMENT = "\ufffd"

WORDS = ("the", " dog", "Hello", "  ", " ", "\n", "\n\n", ".", "é", "ñ", "世", "你好", "こ", "안")
ODD = ("e\u0301", "a\u0308\u0327", "😀", "🎉", "👩‍👩‍👧", "🇩🇪", "\u200d", "▁", REPLACEMENT, "𝔘", "ݨ")
fragments = st.sampled_from(WORDS + ODD)
texts = st.lists(st.one_of(fragments, st.text(max_size=4)), max_size=25).map("".join)
tokenizer_names = st.sampled_from(sorted(tokenizers.ALL))


def decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    return str(
        tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
    )


def pieces(detokenizer: IncrementalDetokenizer, token_ids: Sequence[int]) -> list[str]:
    return [*(detokenizer.append(i) for i in token_ids), detokenizer.finish()]


def new_text(tokenizer: Any, prompt: Sequence[int], output: Sequence[int]) -> str:
    """The text behind the last whole character of the prompt."""
    whole = decode(tokenizer, [*prompt, *output])
    seen = [decode(tokenizer, prompt[:end]).rstrip(REPLACEMENT) for end in range(len(prompt) + 1)]
    return whole[max(len(text) for text in seen if whole.startswith(text)) :]


@fuzz(300)
@given(name=tokenizer_names, text=texts, split=st.floats(0, 1))
def test_increments_add_up_to_the_whole_text(name: str, text: str, split: float) -> None:
    tokenizer = tokenizers.ALL[name]()
    token_ids = tokenizer.encode(text)
    at = round(split * len(token_ids)) if REPLACEMENT not in text else 0
    prompt, output = token_ids[:at], token_ids[at:]
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    got = pieces(detokenizer, output)
    assert "".join(got) == new_text(tokenizer, prompt, output)
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in got)


@fuzz(300)
@given(name=tokenizer_names, data=st.data())
def test_any_tokens_in_any_order(name: str, data: st.DataObject) -> None:
    tokenizer = tokenizers.ALL[name]()
    token_ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=80))
    whole = decode(tokenizer, token_ids)
    got = "".join(pieces(IncrementalDetokenizer(tokenizer, []), token_ids))
    # Byte fallback turns a whole run of bytes into U+FFFD for the sake of one that is wrong.
    if name in ("byte_level", "word_piece") or REPLACEMENT not in whole:
        assert got == whole


@fuzz(100)
@given(data=st.binary(max_size=60))
def test_broken_utf8_reads_as_it_does_at_once(data: bytes) -> None:
    tokenizer = tokenizers.byte_level()
    token_text = TokenText(tokenizer)
    token_of_byte = {token_text.utf8(i): i for i in range(2, 258)}
    token_ids = [token_of_byte[bytes([byte])] for byte in data]
    got = "".join(pieces(IncrementalDetokenizer(tokenizer, []), token_ids))
    assert got == decode(tokenizer, token_ids) == data.decode(errors="replace")


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "metaspace"])
def test_characters_are_sent_whole_and_at_once(name: str) -> None:
    tokenizer = tokenizers.ALL[name]()
    token_ids = tokenizer.encode("𝔘𝔘", add_special_tokens=False)[-8:]
    got = pieces(IncrementalDetokenizer(tokenizer, []), token_ids)
    assert got == ["", "", "", "𝔘", "", "", "", "𝔘", ""]


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "metaspace"])
def test_a_character_that_is_cut_off_is_one_replacement(name: str) -> None:
    tokenizer = tokenizers.ALL[name]()
    token_ids = tokenizer.encode("𝔘𝔘", add_special_tokens=False)[-8:-3]
    assert pieces(IncrementalDetokenizer(tokenizer, []), token_ids)[-3:] == ["𝔘", "", REPLACEMENT]


@pytest.mark.parametrize("name", ["byte_fallback", "metaspace"])
def test_first_word_keeps_its_space_behind_a_prompt(name: str) -> None:
    tokenizer = tokenizers.ALL[name]()
    prompt = tokenizer.encode("Hello")
    output = tokenizer.encode("Hello the", add_special_tokens=True)[len(prompt) :]
    assert "".join(pieces(IncrementalDetokenizer(tokenizer, prompt), output)) == " the"


def test_special_tokens_are_skipped_unless_wanted() -> None:
    tokenizer = tokenizers.byte_level()
    token_ids = tokenizer.encode("the<|im_end|> dog")
    assert "".join(pieces(IncrementalDetokenizer(tokenizer, []), token_ids)) == "the dog"
    shown = IncrementalDetokenizer(tokenizer, [], hidden_ids=frozenset())
    assert "".join(pieces(shown, token_ids)) == "the<|im_end|> dog"


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("kind", ["text", "one byte for ever"])
def test_work_is_bounded(name: str, kind: str) -> None:
    tokenizer = tokenizers.ALL[name]()
    if kind == "text":
        token_ids = tokenizer.encode("你好 the 😀𝔘" * 60)
    else:
        token_ids = tokenizer.encode("𝔘")[-1:] * 1500
    lengths: list[int] = []

    class Counting:
        def decode(self, token_ids: list[int], *args: Any, **kwargs: Any) -> str:
            lengths.append(len(token_ids))
            return str(tokenizer.decode(token_ids, *args, **kwargs))

    detokenizer = IncrementalDetokenizer(Counting(), [])
    got = pieces(detokenizer, token_ids)
    assert max(lengths) <= 40
    assert len(lengths) <= 1.2 * len(token_ids) + 10
    if kind != "text":
        assert all(got[9:-1]), "nothing is held back for ever"


def reference_cut(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """The first character that completes a stop string, looked for the slow way."""
    for end in range(len(text) + 1):
        completed = [s for s in stop if text[:end].endswith(s)]
        if completed:
            longest = max(completed, key=len)
            return text[: end - len(longest)], longest
    return text, None


@fuzz(300)
@given(name=tokenizer_names, text=texts, data=st.data())
def test_stop_strings_cut_where_str_find_does(name: str, text: str, data: st.DataObject) -> None:
    tokenizer = tokenizers.ALL[name]()
    token_ids = tokenizer.encode(text)
    whole = decode(tokenizer, token_ids)
    assume(whole)
    substrings = st.tuples(st.integers(0, len(whole) - 1), st.integers(1, 12)).map(
        lambda span: whole[span[0] : span[0] + span[1]]
    )
    almost = substrings.map(lambda part: part + "\u0378")
    stop = data.draw(st.lists(st.one_of(substrings, almost), min_size=1, max_size=4))
    expected, hit = reference_cut(whole, stop)
    if not any(a != b and a in b for a in stop for b in stop):
        starts = [whole.find(s) for s in stop if s in whole]
        assert expected == whole[: min(starts)] if starts else whole

    detokenizer = IncrementalDetokenizer(tokenizer, [], stop)
    sent = ""
    for token_id in token_ids:
        sent += detokenizer.append(token_id)
        assert expected.startswith(sent), "nothing is sent that has to be taken back"
        if detokenizer.stop_hit is not None:
            break
    sent += detokenizer.finish()
    assert (sent, detokenizer.stop_hit) == (expected, hit)
    assert hit is None or not any(map(detokenizer.append, token_ids))


@fuzz(500)
@given(
    text=st.text("ab", max_size=30),
    stop=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    exempt=st.integers(0, 30),
    include=st.booleans(),
)
def test_stop_strings_that_end_too_early_end_nothing(
    text: str, stop: list[str], exempt: int, include: bool
) -> None:
    """In the first ``exempt`` characters."""
    expected, hit = text, None
    for end in range(exempt + 1, len(text) + 1):
        if completed := [s for s in stop if text[:end].endswith(s)]:
            hit = max(completed, key=len)
            expected = text[: end if include else end - len(hit)]
            break
    matcher = StopMatcher(stop, include=include)
    sent = ""
    for at, character in enumerate(text):
        sent += matcher.feed(character, may_hit=at >= exempt)
        assert expected.startswith(sent), "nothing is sent that has to be taken back"
    assert (sent + matcher.flush(), matcher.hit) == (expected, hit)


@fuzz(300)
@given(
    text=st.text("ab", max_size=40),
    stop=st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 40), max_size=10),
)
def test_matcher_on_repetitive_text(text: str, stop: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stop)
    borders = [0, *sorted(cuts), len(text)]
    expected, hit = reference_cut(text, stop)
    sent = ""
    for start, end in pairwise(borders):
        sent += matcher.feed(text[start:end])
        if matcher.hit is None:
            possible = (text[:end][-n:] for s in stop for n in range(1, len(s)) if n <= end)
            held = max(
                (p for p in possible if any(s.startswith(p) for s in stop)), key=len, default=""
            )
            assert text[len(sent) : end] == held
    assert sent + matcher.flush() == expected
    assert matcher.hit == hit


def test_what_may_begin_a_long_stop_string_is_held_back() -> None:
    matcher = StopMatcher(["a" * 20_000 + "b"])
    sent = "".join(matcher.feed("a") for _ in range(30_000))
    assert len(sent) == 10_000
    assert matcher.feed("b") == ""
    assert matcher.hit is not None


@pytest.mark.parametrize("name", sorted(tokenizers.ALL))
def test_token_bytes_add_up_to_the_text(name: str) -> None:
    tokenizer = tokenizers.ALL[name]()
    token_text = TokenText(tokenizer)
    text = "Hello the dog, naïve 你好 😀𝔘" if name != "word_piece" else "Hello the dog"
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(token_text.utf8(i) for i in token_ids)
    # Without a neighbour in front, SentencePiece's own first space can't be told from a real one.
    assert joined.decode().removeprefix(" ") == text
    for token_id in token_ids:
        text_of_token = token_text.text(token_id)
        assert REPLACEMENT in text_of_token or text_of_token.encode() == token_text.utf8(token_id)


def test_token_text_of_partial_special_and_unused_ids() -> None:
    tokenizer = tokenizers.byte_level()
    token_text = TokenText(tokenizer)
    emoji = tokenizer.encode("𝔘")
    assert [token_text.utf8(i) for i in emoji] == [bytes([b]) for b in "𝔘".encode()]
    assert {token_text.text(i) for i in emoji} == {REPLACEMENT}
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert (token_text.text(end), token_text.utf8(end)) == ("<|im_end|>", b"<|im_end|>")
    assert (token_text.text(10**6), token_text.utf8(10**6)) == ("", b"")

    fallback = TokenText(tokenizers.byte_fallback())
    byte_token = tokenizers.byte_fallback().convert_tokens_to_ids("<0xE4>")
    assert (fallback.text(byte_token), fallback.utf8(byte_token)) == (REPLACEMENT, b"\xe4")
    space_word = tokenizers.byte_fallback().convert_tokens_to_ids("▁dog")
    assert fallback.text(space_word) == " dog"


def num_calls(run: Callable[[], object]) -> int:
    """Of functions and methods, those in C included."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    run()
    sys.setprofile(None)
    return counted


@pytest.mark.parametrize("text", ["a", "aaaaaaab"])
def test_however_stop_strings_are_made_a_token_costs_as_little(text: str) -> None:
    """A client chooses them, and with a bias the text as well; all others wait meanwhile."""
    # One holds text back in which the others could begin at many places.
    stop = ["a" * 999 + "b"] + ["a" * 500 + chr(ord("c") + n) + "a" * 499 for n in range(15)]
    matchers: list[StopMatcher] = []
    num_sequences, num_tokens = 16, 1500
    made = num_calls(lambda: matchers.extend(StopMatcher(stop) for _ in range(num_sequences)))
    assert made <= 4 * num_sequences
    fed = num_calls(lambda: [matchers[0].feed(text) for _ in range(num_tokens)])
    # Each character is looked at a few times by each stop string.
    assert fed <= 12 * len(stop) * num_tokens * len(text)


@fuzz(50)
@given(
    name=tokenizer_names,
    data=st.data(),
    skips=st.booleans(),
    is_wrapped=st.booleans(),
)
def test_text_is_that_of_transformers(
    name: str, data: st.DataObject, skips: bool, is_wrapped: bool
) -> None:
    tokenizer: Any = tokenizers.ALL[name]()
    if not is_wrapped:
        tokenizer = tokenizer._tokenizer
    ids = data.draw(st.lists(st.integers(0, len(tokenizer.get_vocab()) - 1), max_size=20))
    wanted = tokenizer.decode(ids, skips, clean_up_tokenization_spaces=False)
    assert decoder_of(tokenizer)(ids, skips) == wanted


def test_a_tokenizer_that_decodes_in_its_own_way_does() -> None:
    class Shouting(PreTrainedTokenizerFast):  # type: ignore[misc]
        def _decode(self, *args: Any, **kwargs: Any) -> str:
            return str(super()._decode(*args, **kwargs)).upper()

    plain: Any = tokenizers.byte_level()._tokenizer
    shouting: Any = Shouting(tokenizer_object=plain.backend_tokenizer)
    ids = plain.encode("the dog")
    assert decoder_of(plain)(ids, True) == "the dog"
    assert decoder_of(shouting)(ids, True) == "THE DOG"
