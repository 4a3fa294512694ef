"""Thinking with a budget, over HTTP, by a model with random weights that never ends a thought."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client import CollectorRegistry

from backend_metal.backend import MlxBackend
from deployments.backend import EngineConfig
from deployments.replica.app import build_replica_app
from deployments.wire.checkpoint import CheckpointReader, Progress
from deployments.wire.envelope import ENVELOPE_HEADER, Envelope
from tests.support.backend_metal import tiny_models
from tests.support.deployments.replica_server import SECRET, in_memory

TEMPLATE = """\
{%- for m in messages %}{{ m.role }}:
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{- m.content }}<|end|>{% endfor %}assistant: \
{%- if enable_thinking is not defined or enable_thinking %}<think>
{%- else %}<think></think>{% endif %}{# <tool_call> #}"""
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["bird", "fish"]}, "limit": {"type": "integer", "maximum": 99}},
    "required": ["kind", "limit"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": SCHEMA, "strict": True}}
BUDGET = 7
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Which?"}],
    "enable_thinking": True,
    "thinking_token_budget": BUDGET,
    "max_tokens": 400,
    "seed": 3,
    "n": 2,
}
FORMS: dict[str, dict[str, Any]] = {
    "text": {"max_tokens": 30},
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    },
    "call": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture
async def app(checkpoint: Path) -> AsyncIterator[Any]:
    backend = MlxBackend()
    config = EngineConfig(
        model=str(checkpoint), served_model_name="tiny", num_kv_blocks=256, device="cpu"
    )
    yield build_replica_app(
        backend=backend,
        model=await backend.start(config),
        secret=SECRET,
        registry=CollectorRegistry(),
        on_failure=lambda error_type: None,
        max_body_bytes=2**20,
        keep_alive_interval_s=60,
    )
    await backend.stop()


async def whole(app: Any, **fields: Any) -> dict[str, Any]:
    async with in_memory(app) as client:
        response = await client.post("/v1/chat/completions", json=ASKED | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def streamed(app: Any, log: bytes = b"", **fields: Any) -> tuple[list[Any], bytes]:
    """Chunks, and the log of their tokens."""
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps(ASKED | fields | stream).encode()
    envelope = replace(Envelope.seal(), answer_id="a" * 32).for_attempt(uuid.uuid4().hex, log)
    reader = CheckpointReader()
    async with in_memory(app) as client:
        response = await client.post(
            "/v1/chat/completions",
            content=body + log,
            headers={ENVELOPE_HEADER: envelope.header()},
        )
    told = reader.feed(response.content).decode()
    lines = [line.removeprefix("data: ") for line in told.split("\n\n")]
    return [json.loads(line) for line in lines if line.startswith("{")], bytes(reader.log)


def said(chunks: list[Any]) -> dict[int, dict[str, str]]:
    told: dict[int, dict[str, str]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            one = told.setdefault(choice["index"], {"content": "", "reasoning": "", "calls": ""})
            delta = choice["delta"]
            one["content"] += delta.get("content") or ""
            one["reasoning"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                one["calls"] += call["function"]["arguments"]
    return told


@pytest.mark.parametrize("form", [*FORMS])
async def test_thoughts_are_bounded_and_counted_streamed_and_whole(app: Any, form: str) -> None:
    answer = await whole(app, **FORMS[form])
    chunks, _ = await streamed(app, **FORMS[form])
    usage, same = answer["usage"], chunks[-1]["usage"]
    assert usage["completion_tokens"] == same["completion_tokens"]
    assert usage["completion_tokens_details"] == same["completion_tokens_details"]
    reasoning_tokens = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 2 * BUDGET <= reasoning_tokens <= 2 * (BUDGET + 3)
    told = said(chunks)
    for choice in answer["choices"]:
        message, streamed_one = choice["message"], told[choice["index"]]
        assert streamed_one["content"] == (message["content"] or "")
        assert streamed_one["reasoning"] == message.get("reasoning_content", "")
        if form == "schema":
            jsonschema.validate(json.loads(message["content"]), SCHEMA)
        elif form == "call":
            (call,) = message["tool_calls"]
            assert call["function"]["arguments"] == streamed_one["calls"]
            jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)


@pytest.mark.parametrize("form", [*FORMS])
async def test_the_same_elsewhere_wherever_it_was_cut(app: Any, form: str) -> None:
    chunks, log = await streamed(app, **FORMS[form])
    entries = log.split()
    for cut in range(1, len(entries) + 1, 3):
        had = b" ".join(entries[:cut]) + b" "
        rest, more = await streamed(app, had, **FORMS[form])
        assert Progress.parse(had + more).token_ids == Progress.parse(log).token_ids
        usage, expected = rest[-1]["usage"], chunks[-1]["usage"]
        for member in ("completion_tokens", "completion_tokens_details"):
            assert usage[member] == expected[member]


async def test_without_thinking_nothing_is_counted(app: Any) -> None:
    for off in ({"enable_thinking": None, "reasoning_effort": "none"}, {"enable_thinking": False}):
        answer = await whole(app, max_tokens=20, **off)
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
        assert "reasoning_content" not in answer["choices"][0]["message"]


async def test_what_was_thought_goes_to_the_template(app: Any) -> None:
    question = ASKED["messages"][0]
    lengths = []
    for thought in ({}, {"reasoning_content": "Hm. So."}, {"reasoning": "Hm. So."}):
        earlier = {"role": "assistant", "content": "A bird.", **thought}
        answer = await whole(app, messages=[question, earlier, question], max_tokens=1)
        lengths.append(answer["usage"]["prompt_tokens"])
    assert [length - lengths[0] for length in lengths] == [0, *[len("<think>Hm. So.</think>")] * 2]
