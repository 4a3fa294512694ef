"""Small real tokenizers of the kinds that models come with, trained on the spot."""

from __future__ import annotations

import json
from functools import cache

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's the dog's day!",
    "Hello, world! How are you today? I am fine, thank you.",
    "def main():\n    return [i for i in range(10)]\n",
    "Ünïcödé, naïve café, 你好世界, こんにちは, 안녕하세요, привет мир",
    "Emoji: 🎉🎊 😀 👩‍👩‍👧 🇩🇪 and text.",
] * 4
BOS, EOS = "<s>", "</s>"

CHATML = (
    "{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message.role) }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def byte_level() -> TokenizerWrapper:
    """As in Qwen, Llama 3 and GPT: byte-level BPE, with ChatML, no BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return TokenizerWrapper(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=CHATML
        )
    )


def with_template(
    template: str | None, tokenizer: TokenizerWrapper | None = None
) -> TokenizerWrapper:
    """``byte_level``, or another one, with this chat template."""
    inner = (tokenizer or byte_level())._tokenizer
    copy = PreTrainedTokenizerFast(
        tokenizer_object=inner.backend_tokenizer,
        bos_token=inner.bos_token,
        eos_token=inner.eos_token,
        chat_template=template,
    )
    return TokenizerWrapper(copy)


@cache
def byte_fallback() -> TokenizerWrapper:
    """As in Llama 2, Mistral and Gemma: SentencePiece BPE in which unknown characters are bytes."""
    tokenizer = _byte_fallback_bpe()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return TokenizerWrapper(_with_bos(tokenizer))


@cache
def metaspace() -> TokenizerWrapper:
    """The same vocabulary behind a Metaspace pre-tokenizer and decoder."""
    tokenizer = _byte_fallback_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)]
    )
    return TokenizerWrapper(_with_bos(tokenizer))


@cache
def word_piece() -> TokenizerWrapper:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]"))


@cache
def unigram() -> TokenizerWrapper:
    """As in T5: its special tokens are pieces, too, into which plain text could be cut."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300,
        special_tokens=[BOS, EOS, "<unk>"],
        initial_alphabet=[*"<|_>/\n"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return TokenizerWrapper(_with_bos(tokenizer))


ALL = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "metaspace": metaspace,
    "word_piece": word_piece,
}


def _byte_fallback_bpe() -> Tokenizer:
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", BOS, EOS],
        # Leaves most characters of other scripts out, so that they become bytes.
        limit_alphabet=70,
        show_progress=False,
    )
    trained.train_from_iterator(CORPUS, trainer)
    model = json.loads(trained.to_str())["model"]
    vocab = dict(model["vocab"])
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[tuple(merge) for merge in model["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.add_special_tokens(["<unk>", BOS, EOS])
    return tokenizer


def _with_bos(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, unk_token="<unk>"
    )
