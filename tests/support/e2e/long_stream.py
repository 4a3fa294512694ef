"""A stream that is still running when a deployment or a signal reaches its engine."""

from __future__ import annotations

import json

import httpx

from tests.support.e2e.serve_process import READY_TIMEOUT_S

KEY = "a-key-for-the-test"
NUM_CHOICES = 8
NUM_TOKENS = 1000
"""Of each choice. An engine with one sequence at a time makes one choice after another."""


def long_stream(url: str, num_tokens: int = NUM_TOKENS) -> tuple[int, str]:
    """Completion tokens by the stream's own usage, and its last line."""
    usage, last = 0, ""
    body = {
        "model": "demo",
        "prompt": "Pomona is",
        "n": NUM_CHOICES,
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=body, headers=headers, timeout=READY_TIMEOUT_S
    ) as response:
        for line in filter(None, response.iter_lines()):
            last = line
            if '"completion_tokens"' in line:
                usage = json.loads(line.removeprefix("data: "))["usage"]["completion_tokens"]
    return usage, last
