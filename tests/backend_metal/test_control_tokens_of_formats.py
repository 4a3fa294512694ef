"""No message writes the marks that a model's calls and thoughts are made of."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from backend_metal.engine.text.prompt import PromptEncoder
from deployments.backend import ChatPrompt, GenerationRequest, SamplingParams
from deployments.protocol.chat_formats.dialect import markers
from deployments.protocol.chat_formats.formats import FORMATS
from tests.support.backend_metal import tokenizers_for_tests as tokenizers

PARTS = ("｜DSML｜", "<|channel>", "<｜tool▁sep｜>")
"""Tokens that markers begin with or have in them."""


def tokens_of(name: str) -> list[str]:
    texts = {
        next((part for part in PARTS if part in marker), marker.strip())
        for marker in markers(FORMATS[name])
    }
    return sorted(texts - {"", '"', "'", '"""', "'''"})


def tokenizer(tokens: list[str], *, special: bool) -> TokenizerWrapper:
    inner = tokenizers.ALL["byte_level"]()._tokenizer
    backend = Tokenizer.from_str(inner.backend_tokenizer.to_str())
    token = partial(AddedToken, normalized=False, special=special)
    add = backend.add_special_tokens if special else backend.add_tokens
    add([token(text) for text in tokens])
    written = "".join(f"{{{{ {text!r} }}}}" for text in tokens)
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}"
        "{% for call in m.tool_calls or [] %}"
        "{{ call.function.name }}({{ call.function.arguments | tojson }})"
        "{% endfor %}{% endfor %}" + written
    )
    return TokenizerWrapper(
        PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template)
    )


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", sorted(name for name in FORMATS if tokens_of(name)))
def test_what_a_message_spells_is_text(name: str, special: bool) -> None:
    tokens = tokens_of(name)
    model = tokenizer(tokens, special=special)
    encoder = PromptEncoder(model, vocab_size=10**6, max_model_len=100_000)
    controls = set(model.convert_tokens_to_ids(tokens))

    def encode(text: str) -> list[int]:
        called: dict[str, Any] = {"name": "f", "arguments": {"a": text, text: [text]}}
        messages = (
            {"role": "user", "content": text},
            {"role": "assistant", "tool_calls": [{"id": "1", "function": called}]},
            {"role": "tool", "content": f"a{text}b"},
        )
        request = GenerationRequest("r", ChatPrompt(messages), SamplingParams())
        return [token_id for token_id in encoder.encode(request) if token_id in controls]

    assert encode("x") == model.convert_tokens_to_ids(tokens)
    for text in ("".join(tokens), *tokens, f"<{tokens[0]}>"):
        assert encode(text) == encode("x")
