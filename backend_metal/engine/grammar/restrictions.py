"""Tokens that a request's own lists leave out of its answers, whatever the model makes of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from backend_metal.engine.grammar.words import BITS, Ints
from deployments.backend import InvalidRequestError, SamplingParams


class TokenRestrictions:
    """Of all sequences of a request. What they leave is a function of the tokens so far, so a
    sequence that is computed again, here or elsewhere, goes on as it would have."""

    def __init__(
        self,
        *,
        vocab_size: int,
        allowed: Collection[int] | None,
        bad_words: Sequence[tuple[int, ...]],
        min_tokens: int,
        end_token_ids: Collection[int],
    ) -> None:
        """``allowed``: None: all. ``bad_words``: the last token of each does not follow the ones
        before it. ``end_token_ids`` do not come before there are ``min_tokens``."""
        self._allowed = None if allowed is None else frozenset(allowed)
        self._bad_words = [word for word in bad_words if word]
        self._min_tokens = min_tokens
        self._end_token_ids = frozenset(end_token_ids)
        self._mask: Ints | None = None
        if self._allowed is not None:
            bits = np.zeros(-(-vocab_size // BITS) * BITS, np.uint8)
            bits[[token_id for token_id in self._allowed if token_id < vocab_size]] = 1
            self._mask = np.packbits(bits, bitorder="little").view(np.int32)

    def restrict(self, row: Ints, output: Ints) -> None:
        """Take out of ``row``, a bit for each token, what may not follow ``output``."""
        if self._mask is not None:
            row &= self._mask
        for token_id in self._forbidden(output):
            row[token_id // BITS] &= np.uint32(~(1 << token_id % BITS) & 0xFFFFFFFF).view(np.int32)

    def check(self, token_id: int, output: Ints) -> None:
        """Raises ``InvalidRequestError`` for a token that may not follow ``output``: one is drawn
        only where none may."""
        is_allowed = self._allowed is None or token_id in self._allowed
        if not is_allowed or token_id in self._forbidden(output):
            raise InvalidRequestError(
                "allowed_token_ids, bad_words and min_tokens together leave no token that may come "
                "next",
                param="bad_words" if self._bad_words else "allowed_token_ids",
            )

    def _forbidden(self, output: Ints) -> Iterator[int]:
        if len(output) < self._min_tokens:
            yield from self._end_token_ids
        for *before, last in self._bad_words:
            if not before or output[-len(before) :].tolist() == before:
                yield last


def restrictions_of(
    sampling: SamplingParams,
    encode: Callable[[str], list[int]],
    *,
    vocab_size: int,
    end_token_ids: Collection[int],
) -> TokenRestrictions | None:
    """None: any token may come, as in most requests. ``encode``: without special tokens;
    ``end_token_ids``: those that end these answers."""
    if sampling.allowed_token_ids is None and not (sampling.bad_words or sampling.min_tokens):
        return None
    words = {form: None for word in sampling.bad_words for form in _forms(word, encode)}
    return TokenRestrictions(
        vocab_size=vocab_size,
        allowed=sampling.allowed_token_ids,
        bad_words=list(words),
        min_tokens=sampling.min_tokens,
        end_token_ids=end_token_ids,
    )


def _forms(word: str, encode: Callable[[str], list[int]]) -> Iterator[tuple[int, ...]]:
    """Its tokens at the beginning of a text, and behind a blank."""
    yield tuple(encode(word.lstrip()))
    yield tuple(encode(f" {word.lstrip()}"))
