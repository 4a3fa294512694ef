"""Calls in the conversation, as chat templates of special kinds get them."""

from __future__ import annotations

from mlx_lm.chat_templates import deepseek_v32
from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers import PreTrainedTokenizerFast

from backend_metal.engine.text.prompt import PromptEncoder
from deployments.backend import ChatPrompt, GenerationRequest, SamplingParams
from deployments.protocol.chat_formats.events import CallArguments, CallStart
from deployments.protocol.chat_formats.formats import FORMATS
from deployments.protocol.chat_formats.reader import AnswerReader
from tests.support.backend_metal import tokenizers_for_tests as tokenizers

GPT_OSS = """\
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.content and message.thinking %}{{ raise_exception("not both") }}{% endif %}
{{- "<|channel|>analysis<|message|>" + (message.content or message.thinking) + "<|call|>" }}
{%- else %}{{ message.content }}{% endif %}
{%- endfor %}"""
"""The part of it that matters."""


def test_a_function_gets_calls_as_they_are_read() -> None:
    inner = tokenizers.ALL["byte_level"]()._tokenizer
    tokenizer = TokenizerWrapper(inner, chat_template=deepseek_v32.apply_chat_template)
    encoder = PromptEncoder(tokenizer, vocab_size=10**6, max_model_len=100_000)
    function = {"name": "f", "arguments": {"a": "é <b>", "n": 1}}
    messages = (
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]},
        {"role": "tool", "content": "done"},
    )
    prompt = ChatPrompt(messages, {"enable_thinking": False})
    token_ids = encoder.encode(GenerationRequest("r", prompt, SamplingParams()))
    text = tokenizer.decode(token_ids)
    reader = AnswerReader(FORMATS["deepseek_v3_2"])
    calls = text[text.index("<｜DSML｜function_calls>") :]
    events = [*reader.feed(calls), *reader.finish()]
    assert events[:2] == [CallStart("f"), CallArguments('{"a": "é <b>", "n": 1}')]


def test_what_was_thought_and_said_before_a_call_is_one_for_a_template_that_refuses_both() -> None:
    backend = tokenizers.ALL["byte_level"]()._tokenizer.backend_tokenizer
    tokenizer = TokenizerWrapper(
        PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=GPT_OSS)
    )
    encoder = PromptEncoder(tokenizer, vocab_size=10**6, max_model_len=100_000)
    calls = [{"id": "1", "function": {"name": "f", "arguments": {}}}]
    for content, written in (("Right.", "hm\nRight."), ("", "hm"), (None, "hm")):
        said = {"role": "assistant", "content": content, "reasoning_content": "hm"}
        prompt = ChatPrompt(({"role": "user", "content": "hi"}, {**said, "tool_calls": calls}))
        token_ids = encoder.encode(GenerationRequest("r", prompt, SamplingParams()))
        text = f"hi<|channel|>analysis<|message|>{written}<|call|>"
        assert tokenizer.decode(token_ids) == text
