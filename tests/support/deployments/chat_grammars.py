"""What grammars of answers are tried with."""

from __future__ import annotations

from llguidance import LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from deployments.protocol.chat_formats.formats import FORMATS


def vocabulary_with(special: list[str]) -> LLTokenizer:
    """A token a byte, and these."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = {character: index for index, character in enumerate(alphabet)} | {"<end>": 256}
    tokenizer = Tokenizer(models.BPE(tokens, []))
    tokenizer.add_special_tokens(["<end>", *special])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return LLTokenizer(tokenizer.to_str(), eos_token=[256])


def opening_of(name: str) -> str:
    """What an answer begins with that is a call and no thought, which would go on for ever."""
    chat_format = FORMATS[name]
    if chat_format.has_messages:
        return "<|channel|>commentary to="
    (form,) = chat_format.calls
    return "".join(chat_format.wrappers[:1]) + form.start
