"""What only a server can refuse, which knows its model."""

from __future__ import annotations

import json

from tests.support.deployments.bad_input.case import CHAT, COMPLETIONS, BadInput


def only_the_server_knows(model: str, max_model_len: int) -> list[BadInput]:
    other = json.dumps({"model": "no-such-model", "prompt": "hi"}).encode()
    long_name = json.dumps({"model": "x" * 5000, "prompt": "hi"}).encode()
    long_prompt = json.dumps({"model": model, "prompt": [1] * max_model_len}).encode()
    long_chat = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "x " * max_model_len}]}
    ).encode()
    too_long = {"status": 400, "code": "context_length_exceeded", "parsing": False}
    return [
        BadInput(
            "unknown model", COMPLETIONS, other, "model", ("no-such-model",),
            status=404, code="model_not_found", parsing=False,
        ),
        *(
            BadInput(f"reserved {name}", CHAT, body, "chat_template_kwargs", (name,), parsing=False)
            for name, body in _reserved_arguments(model).items()
        ),
        BadInput(
            "unknown model with a long name", COMPLETIONS, long_name, "model", ("xxx...",),
            status=404, code="model_not_found", parsing=False,
        ),
        BadInput(
            "too long prompt", COMPLETIONS, long_prompt, "prompt", (str(max_model_len),), **too_long
        ),
        BadInput(
            "too long chat", CHAT, long_chat, "messages", (str(max_model_len),), **too_long
        ),
    ]  # fmt: skip


def _reserved_arguments(model: str) -> dict[str, bytes]:
    chat = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    arguments = {"tokenize": False, "chat_template": "{{ x }}"}
    return {
        name: json.dumps({**chat, "chat_template_kwargs": {name: value}}).encode()
        for name, value in arguments.items()
    }
