"""A gateway and a replica with a real engine, in one process, over a model with random weights that
calls tools, makes vectors and ranks documents."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from backend_metal.backend import MlxBackend  # isort: skip
import httpx
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer, processors

from deployments.backend import EngineConfig
from deployments.replica.app import build_replica_app
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.pooling_files import write_pooling_files
from tests.support.deployments import openai_types
from tests.support.deployments.gateway_harness import SECRET, Running, gateway, replica_at, serving

TEMPLATE = """\
{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}
{{ message.role }}{{ message.name }}{{ message.tool_call_id }}: {{ message.reasoning_content }}
{{ message.content }}{% for tool_call in message.tool_calls or [] %}
{{ tool_call.id }}{% if tool_call.function %}{% set tool_call = tool_call.function %}{% endif %}
<tool_call>
{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}
assistant: {% endif %}"""
"""Tells that calls are written as Hermes does, and all of a message. There are no thoughts."""
MAX_MODEL_LEN = 1024
BOS_ID = 256


def save(directory: Path) -> None:
    tiny_models.save("qwen3", directory)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{tiny_models.BOS} $A", special_tokens=[(tiny_models.BOS, BOS_ID)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    write_pooling_files(directory, "last")


@asynccontextmanager
async def shaped_gateway(model: Path) -> AsyncIterator[Running]:
    """``model``: a folder that ``save`` has written. Its name is ``demo``, without keys."""
    config = EngineConfig(
        model=str(model),
        served_model_name="demo",
        device="cpu",
        num_kv_blocks=256,
        max_model_len=MAX_MODEL_LEN,
    )
    async with engine_gateway(MlxBackend(), config) as running:
        yield running


@asynccontextmanager
async def engine_gateway(backend: MlxBackend, config: EngineConfig) -> AsyncIterator[Running]:
    """A gateway in front of one engine, which it starts and stops."""
    async with AsyncExitStack() as stack:
        info = await backend.start(config)
        stack.push_async_callback(backend.stop)
        app = build_replica_app(
            backend=backend,
            model=info,
            secret=SECRET,
            registry=CollectorRegistry(),
            on_failure=lambda error_type: None,
            max_body_bytes=1 << 20,
            keep_alive_interval_s=60.0,
        )
        url = await stack.enter_async_context(serving(app))
        yield await stack.enter_async_context(gateway([replica_at(url)]))


async def told(client: httpx.AsyncClient, path: str, **fields: Any) -> Any:
    """The body of an answer, which has nothing that OpenAI's own client wouldn't know."""
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    body = response.json()
    openai_types.answer(path, body)
    return body


async def streamed(client: httpx.AsyncClient, path: str, **fields: Any) -> list[dict[str, Any]]:
    """The data of a stream's events, decoded, without comments and the last ``[DONE]``."""
    response = await client.post(path, json={**fields, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for event in response.text.split("\n\n"):
        for line in event.splitlines():
            if line.startswith("data: {"):
                event_data = json.loads(line.removeprefix("data: "))
                openai_types.event(path, event_data)
                events.append(event_data)
    return events
