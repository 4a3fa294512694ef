"""What evaluation harnesses ask, over HTTP from a real engine, against mlx-lm's model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from openai import OpenAI
from prometheus_client import CollectorRegistry

from backend_metal.backend import MlxBackend
from deployments.backend import EngineConfig
from deployments.replica.app import build_replica_app
from tests.support.backend_metal import tiny_models
from tests.support.deployments.gateway_harness import SECRET, gateway, replica_at, serving

CONTEXT, CONTINUATION = list(range(40, 75)), [80, 90, 100, 81]


async def test_log_likelihoods_and_the_fields_around_them(tmp_path: Path) -> None:
    tiny_models.save("qwen3", tmp_path)
    model, _ = tiny_models.build("qwen3")
    backend = MlxBackend()
    config = EngineConfig(
        model=str(tmp_path), served_model_name="demo", device="cpu", num_kv_blocks=64
    )
    app = build_replica_app(
        backend=backend,
        model=await backend.start(config),
        secret=SECRET,
        registry=CollectorRegistry(),
        on_failure=lambda error_type: None,
        max_body_bytes=1 << 20,
        keep_alive_interval_s=5,
    )
    async with serving(app) as url, gateway([replica_at(url)]) as gate:
        client = OpenAI(base_url=f"{gate.url}/v1", api_key="none", max_retries=0)
        for check in (log_likelihood, batches, restrictions, warm_up, continuation):
            await asyncio.to_thread(check, client, model)
        client.close()
    await backend.stop()


def complete(client: OpenAI, prompt: Any, **fields: Any) -> Any:
    known = {"max_tokens": 1, "temperature": 0, "seed": 1234}
    return client.completions.create(**{"model": "demo", "prompt": prompt, **known, **fields})


def dense(model: Any, tokens: list[int]) -> np.ndarray:
    logits = model(mx.array([tokens]))[0].astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


def log_likelihood(client: OpenAI, model: Any) -> None:
    """As lm-eval computes it from a completion."""
    tokens = CONTEXT + CONTINUATION
    rows = dense(model, tokens)
    expected = [rows[at - 1][token] for at, token in enumerate(tokens)][len(CONTEXT) :]
    for max_tokens, end in ((1, -1), (0, None)):
        answer = complete(client, tokens, echo=True, logprobs=1, max_tokens=max_tokens)
        logprobs = answer.choices[0].logprobs
        told = logprobs.token_logprobs[len(CONTEXT) : end]
        assert told == pytest.approx(expected, abs=1e-3)
        best = [max(one.values()) for one in logprobs.top_logprobs[len(CONTEXT) : end]]
        assert best == pytest.approx(rows[len(CONTEXT) - 1 : -1].max(-1).tolist(), abs=1e-3)
        assert answer.usage.completion_tokens == max_tokens


def batches(client: OpenAI, model: Any) -> None:
    prompts = [CONTEXT[: 3 + length] for length in range(20)]
    choices = complete(client, prompts, echo=True, logprobs=0).choices
    for choice, prompt in zip(choices, prompts, strict=True):
        rows = dense(model, prompt)
        first, *told = choice.logprobs.token_logprobs[:-1]
        assert first is None
        expected = [rows[at][token] for at, token in enumerate(prompt[1:])]
        assert told == pytest.approx(expected, abs=1e-3)
        assert choice.text.startswith(bytes(prompt).decode())
        for at in range(len(prompt)):
            text = choice.text[choice.logprobs.text_offset[at] :]
            assert text.startswith(choice.logprobs.tokens[at])


def restrictions(client: OpenAI, model: Any) -> None:
    asked = {"allowed_token_ids": [65, 66], "min_tokens": 5, "stop_token_ids": [66]}
    body = {**asked, "return_token_ids": True}
    [choice] = complete(client, CONTEXT, max_tokens=9, extra_body=body).choices
    assert choice.token_ids[:5] == [65] * 5
    assert {*choice.token_ids} <= {65, 66}
    assert choice.prompt_token_ids == CONTEXT
    *chunks, _ = complete(
        client,
        CONTEXT,
        max_tokens=9,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        extra_body=body,
    )
    assert [one for chunk in chunks for one in chunk.choices[0].token_ids] == choice.token_ids
    assert chunks[-1].usage.completion_tokens == len(choice.token_ids)


def warm_up(client: OpenAI, model: Any) -> None:
    prompt = [*range(100, 150)]
    assert complete(client, prompt, max_tokens=0).usage.completion_tokens == 0
    assert complete(client, prompt).usage.prompt_tokens_details.cached_tokens == 48
    cut = complete(client, prompt, extra_body={"truncate_prompt_tokens": 7})
    assert cut.usage.prompt_tokens == 7


def continuation(client: OpenAI, model: Any) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]
    body = {"add_generation_prompt": False, "return_token_ids": True, "prompt_logprobs": 0}
    fields: dict[str, Any] = {"model": "demo", "messages": said, "max_tokens": 2}
    whole = client.chat.completions.create(extra_body=body, **fields)
    body["continue_final_message"] = True
    cut = client.chat.completions.create(extra_body=body, **fields)
    assert cut.prompt_token_ids == whole.prompt_token_ids[: len(cut.prompt_token_ids)]
    assert cut.prompt_token_ids[-2:] == [*b"bc"]
    assert len(cut.prompt_logprobs) == len(cut.prompt_token_ids)
