"""Bodies of requests whose answers have every shape that a stream can have."""

from __future__ import annotations

from typing import Any

from tests.support.deployments.gateway_harness import CHAT

WORDS = "one two three é 🍎 日本"
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def chat(words: str = WORDS, **fields: Any) -> dict[str, Any]:
    return {**CHAT, "messages": [{"role": "user", "content": words}], **fields}


def completion(prompt: Any = WORDS, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "prompt": prompt, "max_tokens": 50, **fields}


TOLD = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "return_token_ids": True,
}

STREAMED = {
    "chat": chat(**STREAM),
    "no usage": chat(stream=True),
    "choices": chat(n=3, logprobs=True, top_logprobs=2, **STREAM),
    "stop across tokens": chat("a bc de fg h", stop=["c de f"], n=2, **STREAM),
    "almost a stop": chat("a bc de fg h", stop=["c de x", "h i"], **STREAM),
    "one token": chat("one", **STREAM),
    "told": chat(n=2, logprobs=True, return_tokens_as_token_ids=True, **TOLD),
    "completion told": completion(["one two", WORDS], n=2, **TOLD),
    "completion": completion(logprobs=2, **STREAM),
    "echo": completion(["one two", "a b"], n=2, echo=True, **STREAM),
    "echoed logprobs": completion(["one two", "a b"], n=2, echo=True, logprobs=1, **STREAM),
    "prompts": completion(["one two", WORDS, "a b c"], n=2, logprobs=0, **STREAM),
}
