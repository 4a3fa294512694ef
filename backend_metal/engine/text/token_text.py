"""How one token reads, for logprobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from backend_metal.engine.text.byte_level import bytes_of
from backend_metal.engine.text.decode import byte_level_vocabulary
from backend_metal.engine.text.tokenizer import Tokenizer
from deployments.backend import TokenLogprob

END_TOKENS = 16
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenText:
    """Text and bytes of single tokens, special ones included; remembers every answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = byte_level_vocabulary(tokenizer)
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
        known = self._cache.get(token_id)
        if known is None:
            known = self._cache[token_id] = self._read(token_id)
        return known

    def _read(self, token_id: int) -> tuple[str, bytes]:
        if self._vocabulary is not None:
            utf8 = self._vocabulary.utf8(token_id)
            return utf8.decode(errors="replace"), utf8
        text = self._decode([*self._anchor, token_id])[self._anchor_length :]
        return text, self._bytes(token_id, text)

    def _bytes(self, token_id: int, text: str) -> bytes:
        if "\ufffd" not in text:
            return text.encode()
        token = self._tokenizer.convert_ids_to_tokens(token_id) or ""
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(match[1])
        utf8 = bytes_of(token)
        return text.encode() if utf8 is None else utf8

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, False, clean_up_tokenization_spaces=False)
