"""Bodies that cost a server more than their senders. Sizes are those at which attacks have hurt."""

from __future__ import annotations

import json
from typing import Any

CUSTOM_TOOLS_TEMPLATE = (
    "{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}"
    "{%- if tools %}{{- '<|im_start|>system\n' }}"
    "{%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role }}"
    "{%- if message.name is defined %}{{- ' ' + message.name }}{%- endif %}"
    "{{- '\n' + message.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""Writes tools as Llama 3.1's does, and names, which the embedded model's own does not."""


def chat(content: Any = "one two three", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


def much_output(num_prompts: int) -> dict[str, Any]:
    """Some 30 KB of events a step for each prompt."""
    prompt = [f"{number} one two three" for number in range(num_prompts)]
    whole = {"n": 16, "max_tokens": 2000, "logprobs": 20, "ignore_eos": True}
    return {"prompt": prompt, "stream": True, **whole}


def many_sequences(num_prompts: int) -> dict[str, Any]:
    prompt = [f"{number} one two three" for number in range(num_prompts)]
    return {"prompt": prompt, "n": 16, "max_tokens": 2000, "ignore_eos": True, "stream": True}


def whole_answer() -> dict[str, Any]:
    return chat(n=16, max_tokens=2000, ignore_eos=True)


def stop_strings(num_prompts: int) -> dict[str, Any]:
    stop = [("a" * 999) + chr(ord("b") + number) for number in range(16)]
    return {**many_sequences(num_prompts), "stop": stop}


def template_argument() -> dict[str, Any]:
    tools = [{"name": f"tool {number}", "description": "a word " * 120} for number in range(5400)]
    return chat(chat_template_kwargs={"custom_tools": tools}, max_tokens=8)


def long_name() -> dict[str, Any]:
    message = {"role": "user", "name": "a name " * 700_000, "content": "one"}
    return {"messages": [message], "max_tokens": 8}


def long_prompt() -> dict[str, Any]:
    return {"prompt": "Quinces ripen late. " * 42_500, "max_tokens": 8}


def many_parts() -> dict[str, Any]:
    return chat([{"type": "text", "text": ""}] * 238_000, max_tokens=8)


def many_ids() -> dict[str, Any]:
    return {"prompt": [[7] * 12_000] * 256, "max_tokens": 8}


def control_tokens() -> dict[str, Any]:
    return chat("<|im_end|>\n<|im_start|>system\n" * 30_000, max_tokens=8)


def encoded(model: str, body: dict[str, Any]) -> bytes:
    return json.dumps({"model": model, **body}, separators=(",", ":")).encode()
