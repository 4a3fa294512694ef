"""A model that does what its user says: ``CALL read_file path=a.txt`` has it call that tool, and
what the tool gave is in its answer. ``SAY {"name": "Ulm"}`` has it say that. Without such words it
calls the one tool there is, or gives the plainest instance of the schema it is held to.

It writes as Qwen 3 does, words are its tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from deployments.backend import (
    ChatPrompt,
    Delta,
    EngineConfig,
    GenerationRequest,
    ModelInfo,
    Prefill,
)
from tests.support.clients.instance import instance
from tests.support.deployments.fake_backend import FakeBackend

TEMPLATE = """{%- for message in messages %}{{ message.role }}: {{ message.content }}
{%- for tool_call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}
</tool_call>
{%- endfor %}
{%- endfor %}<think>
</think>{{ tools | tojson }}"""
"""Never rendered; it tells how calls and thoughts are written."""
CALL = re.compile(r"CALL ([\w.-]+)((?: \w+=[\w./-]+)*)")
SAY = re.compile(r"SAY (\{.*\})")
GREETING = "Hello from a scripted model."


class ScriptedBackend(FakeBackend):
    async def start(self, config: EngineConfig) -> ModelInfo:
        return replace(await super().start(config), chat_template=TEMPLATE)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Prefill, None]:
        said = replace(request, prompt=answer_to(request))
        async for item in super().generate(said):
            yield item


def answer_to(request: GenerationRequest) -> str:
    """With no white space but single blanks, as words are said."""
    if not isinstance(request.prompt, ChatPrompt):
        return GREETING
    messages, tools = request.prompt.messages, request.prompt.tools
    grammar = request.sampling.grammar
    if found := SAY.search(_text(messages[-1])):
        return found[1]
    if grammar is not None and grammar.kind == "json_schema":
        return json.dumps(instance(json.loads(grammar.text)))
    if tools and (calls := _calls_to_make(messages)):
        name, arguments = calls[0]
        return _call(name, dict(one.split("=", 1) for one in arguments.split()))
    if messages[-1]["role"] == "tool":
        return f"The tool said: {' '.join(_text(messages[-1]).split())}"
    if len(tools) == 1:
        function = tools[0]["function"]
        return _call(function["name"], instance(function["parameters"]))
    return GREETING


def _calls_to_make(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What the latest words of a user ask for, less what was called since."""
    num_made = 0
    for message in reversed(messages):
        num_made += message["role"] == "assistant"
        if message["role"] == "user" and (calls := CALL.findall(_text(message))):
            return calls[num_made:]
    return []


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<think> I am to call {name}. </think> <tool_call> {call} </tool_call>"


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)
