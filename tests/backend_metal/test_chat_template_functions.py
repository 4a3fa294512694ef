"""Chat templates that are functions, as mlx-lm has them, of calls in the conversation."""

from __future__ import annotations

from mlx_lm.chat_templates import deepseek_v32
from mlx_lm.tokenizer_utils import TokenizerWrapper

from backend_metal.engine.text.prompt import PromptEncoder
from deployments.backend import ChatPrompt, GenerationRequest, SamplingParams
from deployments.protocol.chat_formats.events import CallArguments, CallStart
from deployments.protocol.chat_formats.formats import FORMATS
from deployments.protocol.chat_formats.reader import AnswerReader
from tests.support.backend_metal import tokenizers_for_tests as tokenizers


def test_a_call_of_the_conversation_is_written_as_it_is_read() -> None:
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
