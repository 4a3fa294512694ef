"""What a prompt may cost, and what its template and tokenizer may do, before it is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from backend_metal.engine.text import prompt as module
from backend_metal.engine.text.prompt import SLICE_CHARS_PER_TOKEN, PromptEncoder
from deployments.backend import (
    ChatPrompt,
    ContextLengthError,
    GenerationRequest,
    InvalidRequestError,
    Prompt,
    SamplingParams,
)

CONTEXT = 100
LONGEST = "hello-there"
VOCAB = {character: i for i, character in enumerate("abcdefghijklmnopqrstuvwxyz -<|>")}
VOCAB[LONGEST] = len(VOCAB)
MOST_CHARACTERS = CONTEXT * len(LONGEST)


class Noting(PreTrainedTokenizerFast):
    """Keeps the texts that it is given."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.texts: list[str] = []

    def encode(self, text: str, **how: Any) -> list[int]:
        self.texts.append(text)
        return list(super().encode(text, **how))


def noting(template: str, *, pattern: str = f"{LONGEST}|.") -> Noting:
    backend = Tokenizer(models.WordLevel(VOCAB, unk_token="-"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.add_special_tokens(["<|end|>"])
    return Noting(tokenizer_object=backend, chat_template=template)


def chat(content: str, **arguments: Any) -> ChatPrompt:
    return ChatPrompt(({"role": "user", "content": content},), arguments)


def encode(tokenizer: Any, prompt: Prompt, *, context: int = CONTEXT) -> list[int]:
    encoder = PromptEncoder(tokenizer, vocab_size=100, max_model_len=context)
    return encoder.encode(GenerationRequest("a", prompt, SamplingParams(max_tokens=7)))


def refused(tokenizer: Any, prompt: Prompt) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        encode(tokenizer, prompt)
    return caught.value


def test_a_rendering_ends_where_it_can_not_fit() -> None:
    """Of a template that makes a gigabyte of a kilobyte."""
    tokenizer = noting("{% for i in range(99999) %}{{ messages[0].content * 9 }}{% endfor %}")
    error = refused(tokenizer, chat("x" * 1000))
    assert isinstance(error, ContextLengthError)
    assert (error.param, tokenizer.texts) == ("messages", [])
    assert "(818 or more in the messages, 7 in the completion)" in str(error)


@pytest.mark.parametrize(
    "template", ["{{ notes }}", "{{ notes | tojson }}", "{{ messages[0].name }}"]
)
def test_whatever_a_template_writes_is_counted(template: str) -> None:
    long = "x" * MOST_CHARACTERS
    prompt = ChatPrompt(({"role": "user", "content": "", "name": long},), {"notes": long})
    tokenizer = noting(template)
    assert isinstance(refused(tokenizer, prompt), ContextLengthError)
    assert tokenizer.texts == []


def test_text_that_is_hidden_counts_as_it_is() -> None:
    """A character of a control token's text takes more while the template has it."""
    tokenizer = noting("{{ messages[0].content }}")
    text = "<|end|>" * 10
    assert len(encode(tokenizer, chat(text))) == len(text)


@pytest.mark.parametrize("prompt", [chat("x" * 5000), "x" * 5000, tuple(range(CONTEXT))])
def test_what_can_be_told_at_once(prompt: Prompt) -> None:
    encoder = PromptEncoder(noting(""), vocab_size=100, max_model_len=CONTEXT)
    with pytest.raises(ContextLengthError):
        encoder.check_size(GenerationRequest("a", prompt, SamplingParams()))


def test_a_text_is_tokenized_until_it_can_not_fit() -> None:
    size = SLICE_CHARS_PER_TOKEN * CONTEXT
    tokenizer = noting("{{ messages[0].content }}")
    error = refused(tokenizer, chat("x" * (MOST_CHARACTERS - 1)))
    assert isinstance(error, ContextLengthError)
    assert [len(text) for text in tokenizer.texts] == [size]
    assert "or more" in str(error)


def test_a_long_text_of_few_tokens_fits() -> None:
    text = LONGEST * (CONTEXT - 1)
    assert len(text) > SLICE_CHARS_PER_TOKEN * CONTEXT
    assert encode(noting(""), text) == [VOCAB[LONGEST]] * (CONTEXT - 1)
    assert encode(noting("{{ messages[0].content }}"), chat(text)) == encode(noting(""), text)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{{ 'x' * 9223372036854775807 }}", "MemoryError"),
        ("{{ 'x' * (2 ** 90) }}", "index-sized"),
    ],
)
def test_a_template_that_fails_refuses(template: str, reason: str) -> None:
    error = refused(noting(template), chat("x"))
    assert (error.param, reason in str(error)) == ("messages", True)


def test_a_template_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RENDERED_PIECES", 1000)
    tokenizer = noting(
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ messages[0].content }}"
        "{% endfor %}{% endfor %}"
    )
    assert "in more than 1000 pieces" in str(refused(tokenizer, chat("")))


def test_a_tokenizer_that_panics() -> None:
    """In Rust: what Python gets is no ``Exception``."""
    tokenizer = noting("{{ messages[0].content }}", pattern="(a+)+$")
    endless = "a" * 64 + "b"
    for prompt, param in ((endless, "prompt"), (chat(endless), "messages")):
        error = refused(tokenizer, prompt)
        assert (error.param, "the tokenizer can't read" in str(error)) == (param, True)
    assert encode(tokenizer, "b")


def test_text_that_a_tokenizer_has_no_token_for() -> None:
    inner = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.Unigram([("a", 0.0)])))
    assert "the tokenizer can't read prompt" in str(refused(inner, "b"))
