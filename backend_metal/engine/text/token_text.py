"""How one token reads, for logprobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from backend_metal.engine.text.tokenizer import Tokenizer
from deployments.backend import TokenLogprob

END_TOKENS = 16
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenText:
    """Text and bytes of single tokens, special ones included; remembers every answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Decoded behind another token, a word keeps its leading space.
        self._anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._anchor_length = len(self._decode(self._anchor))
        self._cache: dict[int, tuple[str, bytes]] = {}
        self._special_ids = {
            token.content: token_id
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }

    def end_of(self, token_ids: list[int]) -> str:
        """The text of the last few."""
        return self._decode(token_ids[-END_TOKENS:])

    def text_of(self, token_ids: list[int]) -> str:
        """The text of all, control tokens included."""
        return self._decode(token_ids)

    def logprob(
        self, token_id: int, logprob: float, top: Iterable[tuple[int, float]] = ()
    ) -> TokenLogprob:
        text, utf8 = self._lookup(token_id)
        return TokenLogprob(token_id, text, utf8, logprob, tuple(self.logprob(*one) for one in top))

    def hidden_ids(self, shown: Iterable[str], *, skip_special: bool) -> frozenset[int] | None:
        """The special tokens but those ``shown``; None if these are none. Empty without
        ``skip_special``."""
        if not skip_special:
            return frozenset()
        shown_ids = {self._special_ids[text] for text in shown if text in self._special_ids}
        return frozenset(self._special_ids.values()) - shown_ids if shown_ids else None

    def decode(self, token_ids: Sequence[int]) -> str:
        """With special tokens."""
        return self._decode(list(token_ids))

    def name(self, token_id: int) -> str:
        """As the vocabulary has it; empty for an unused id."""
        return self._tokenizer.convert_ids_to_tokens(token_id) or ""

    def text(self, token_id: int) -> str:
        """U+FFFD stands for bytes that aren't a whole character; empty for an unused id."""
        return self._lookup(token_id)[0]

    def utf8(self, token_id: int) -> bytes:
        """The token's own bytes, also those of a part of a character."""
        return self._lookup(token_id)[1]

    def _lookup(self, token_id: int) -> tuple[str, bytes]:
        if token_id not in self._cache:
            text = self._decode([*self._anchor, token_id])[self._anchor_length :]
            self._cache[token_id] = text, self._bytes(token_id, text)
        return self._cache[token_id]

    def _bytes(self, token_id: int, text: str) -> bytes:
        if "\ufffd" not in text:
            return text.encode()
        token = self._tokenizer.convert_ids_to_tokens(token_id) or ""
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(match[1])
        alphabet = _byte_level_alphabet()
        if all(character in alphabet for character in token):
            return bytes(alphabet[character] for character in token)
        return text.encode()

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, False, clean_up_tokenization_spaces=False)


@cache
def _byte_level_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table): printable
    Latin-1 characters stand for themselves, the others are shifted past it, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }
