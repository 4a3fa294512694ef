"""Vocabularies whose tokens are bytes, as GPT-2's: the text of an answer is that of its tokens'
bytes, one after another, so that none of it is ever decoded again."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence, Set
from functools import cache
from weakref import WeakKeyDictionary

import tokenizers
from transformers import PreTrainedTokenizerFast

MOST_UNFINISHED_BYTES = 3
"""Of a character, before its last one."""
_REPLACEMENT = "\ufffd"


class ByteLevelVocabulary:
    """The bytes of each token; remembers every answer."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8: dict[int, bytes] = {}
        self.special_ids = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )

    def utf8(self, token_id: int) -> bytes:
        """Empty for an unused id."""
        known = self._utf8.get(token_id)
        if known is None:
            token = self._tokenizer.id_to_token(token_id) or ""
            utf8 = bytes_of(token)
            known = self._utf8[token_id] = token.encode() if utf8 is None else utf8
        return known


class ByteStream:
    """The text of one sequence's output, as far as it is certain."""

    def __init__(
        self,
        vocabulary: ByteLevelVocabulary,
        prompt_token_ids: Sequence[int],
        hidden_ids: Set[int] | None,
    ) -> None:
        """As ``IncrementalDetokenizer`` has them."""
        self._vocabulary = vocabulary
        self._hidden_ids = vocabulary.special_ids if hidden_ids is None else hidden_ids
        self._unfinished = b""
        """Of a character."""
        tail = b""
        for token_id in reversed(prompt_token_ids):
            tail = self._bytes(token_id) + tail
            if len(tail) >= MOST_UNFINISHED_BYTES:
                break
        self._decode(tail[-MOST_UNFINISHED_BYTES:])
        self._begun = self._unfinished
        """What the prompt has of a character of the output. If it is none after all, nobody is told
        of it."""

    def push(self, token_id: int) -> str:
        """The text that is certain now."""
        utf8 = self._bytes(token_id)
        text = self._decode(utf8)
        if self._begun and utf8:
            text = self._first(text, utf8)
        return text

    def flush(self) -> str:
        """One U+FFFD for a character that was never completed, if the output began it."""
        return "" if self._begun else self._decode(b"", final=True)

    def _decode(self, utf8: bytes, *, final: bool = False) -> str:
        utf8 = self._unfinished + utf8
        text, taken = codecs.utf_8_decode(utf8, "replace", final)
        self._unfinished = utf8[taken:]
        return text

    def _first(self, text: str, utf8: bytes) -> str:
        begun, self._begun = self._begun + utf8, b""
        if not text:
            self._begun = begun
        elif text[0] == _REPLACEMENT and not begun.startswith(_REPLACEMENT.encode()):
            return text[1:]
        return text

    def _bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._hidden_ids else self._vocabulary.utf8(token_id)


_known: WeakKeyDictionary[PreTrainedTokenizerFast, ByteLevelVocabulary | None] = WeakKeyDictionary()


def vocabulary_of(tokenizer: PreTrainedTokenizerFast) -> ByteLevelVocabulary | None:
    """None: its tokens are not bytes alone. Every call has the same one for a tokenizer."""
    if tokenizer not in _known:
        backend = tokenizer.backend_tokenizer
        _known[tokenizer] = ByteLevelVocabulary(backend) if _is_byte_level(backend) else None
    return _known[tokenizer]


def _is_byte_level(tokenizer: tokenizers.Tokenizer) -> bool:
    if tokenizer.decoder is None:
        return False
    decoder = json.loads(tokenizer.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return [step["type"] for step in steps] == ["ByteLevel"]


def bytes_of(token: str) -> bytes | None:
    """The bytes that a token's characters stand for; None if any of them is no byte."""
    try:
        return token.translate(_bytes_as_latin_1()).encode("latin-1")
    except UnicodeEncodeError:
        return None


@cache
def _bytes_as_latin_1() -> dict[int, int]:
    """For each character the byte that it stands for (GPT-2's table): printable characters of
    Latin-1 stand for themselves, the other bytes are shifted past it, in order. What stands for no
    byte is sent out of Latin-1."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    shifted = {0x100 + i: byte for i, byte in enumerate(others)}
    return dict.fromkeys(others, 0x100) | shifted
