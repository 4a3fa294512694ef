"""The text of token ids, without what transformers does around that at each call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers import PreTrainedTokenizerFast

from backend_metal.engine.text.byte_level import ByteLevelVocabulary, vocabulary_of
from backend_metal.engine.text.tokenizer import Tokenizer

Decode = Callable[[list[int], bool], str]
"""Token ids, and whether special ones are left out."""


def decoder_of(tokenizer: Tokenizer) -> Decode:
    """The tokenizer's ``decode`` with its spaces as they are. That of transformers adds nothing but
    checks of types, which take longer than all else; a class may have one that does."""
    plain = plain_tokenizer(tokenizer)
    if plain is not None:
        return plain.backend_tokenizer.decode
    return partial(tokenizer.decode, clean_up_tokenization_spaces=False)


def plain_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast | None:
    """The tokenizer, if it decodes as its backend does."""
    inner = tokenizer._tokenizer if isinstance(tokenizer, TokenizerWrapper) else tokenizer
    plain, kind = PreTrainedTokenizerFast, type(inner)
    if (
        isinstance(inner, plain)
        and kind.decode is plain.decode
        and kind._decode is plain._decode
        and "decode" not in vars(inner)
    ):
        return inner
    return None


def byte_level_vocabulary(tokenizer: Tokenizer) -> ByteLevelVocabulary | None:
    """None: its tokens are not bytes alone, or it does not decode as its backend does."""
    plain = plain_tokenizer(tokenizer)
    return None if plain is None else vocabulary_of(plain)
