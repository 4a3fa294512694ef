"""The model's vocabulary as llguidance has it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from llguidance import LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

SLICES = (*LLTokenizer.general_slices(), r'[^<\["\\\x00-\x1F\x7F]+')
"""Sets of tokens that a mask may take as a whole, if any of a set may come: of strings in JSON, and
of text in which no marker of a call begins."""


def vocabulary_of(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]
) -> LLTokenizer:
    """``vocab_size``: the width of the logits. Added tokens are text unless they are special."""
    ends = sorted(eos_token_ids)
    read = LLTokenizer(tokenizer.to_str(), n_vocab=vocab_size, eos_token=ends, slices=[])
    # llguidance has no text for any `<...>`, such as Qwen 3's `<think>` and `<tool_call>`: a model
    # would have to spell them, in tokens that it was never trained to.
    texts = {
        token_id: token.content.encode()
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
        if not token.special and token_id not in ends and read.is_special_token(token_id)
    }
    if not texts:
        return read.with_slices(list(SLICES))
    wrapper = TokenizerWrapper(_Corrected(read, texts))
    return LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=ends, slices=list(SLICES))


class _Corrected:
    """What ``TokenizerWrapper`` asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, read: LLTokenizer, texts: Mapping[int, bytes]) -> None:
        ids = range(read.vocab_size)
        self._read = read
        self.eos_token_id = read.eos_token
        self.tokens = [texts.get(one) or read.decode_bytes([one]) for one in ids]
        self.special_token_ids = [
            one for one in ids if one not in texts and read.is_special_token(one)
        ]

    def __call__(self, text: str) -> list[int]:
        return self._read.tokenize_str(text)
