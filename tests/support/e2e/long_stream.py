"""Streams that are running when a deployment or a signal reaches their engine or gateway."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus

import httpx

from tests.support.e2e.serve_process import READY_TIMEOUT_S

KEY = "a-key-for-the-test"
NUM_CHOICES = 8
NUM_TOKENS = 1000
"""Of each choice. An engine with one sequence at a time makes one choice after another."""


@contextmanager
def streams_throughout(url: str) -> Iterator[None]:
    """One long stream after another, however long the block takes: one is running at any moment of
    it. Each one that began must come whole; the last may outlast the block."""
    block_ended = threading.Event()

    def ask() -> list[tuple[int, str]]:
        answers = []
        while not answers or not block_ended.is_set():
            try:
                answers.append(long_stream(url))
            except httpx.HTTPStatusError as refusal:
                if refusal.response.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                if block_ended.wait(0.1):
                    break
        return answers

    with ThreadPoolExecutor() as threads:
        streams = threads.submit(ask)
        try:
            yield
        finally:
            block_ended.set()
        answers = streams.result()
    assert answers
    assert answers == [(NUM_CHOICES * NUM_TOKENS, "data: [DONE]")] * len(answers)


def long_stream(url: str, num_tokens: int = NUM_TOKENS) -> tuple[int, str]:
    """Completion tokens by the stream's own usage, and its last line. An ``HTTPStatusError`` where
    it was refused."""
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
        response.raise_for_status()
        for line in filter(None, response.iter_lines()):
            last = line
            if '"completion_tokens"' in line:
                usage = json.loads(line.removeprefix("data: "))["usage"]["completion_tokens"]
    return usage, last
