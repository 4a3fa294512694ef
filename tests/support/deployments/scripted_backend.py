"""A backend that says what it is told to say, in the form in which Hermes calls tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from deployments.backend import (
    Delta,
    EngineConfig,
    FinishReason,
    GenerationRequest,
    ModelInfo,
    Prefill,
    StepError,
    TokenLogprob,
)
from deployments.replica.app import build_replica_app
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.replica_server import MODEL, SECRET

HERMES = "{% for m in messages %}{{ m.content }}{% endfor %}<tool_call> tool_call.name"
ANSWER = (
    "<think>\nWhere?\n</think>\n\nLet me see.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Köln <b>"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)


class Scripted(FakeBackend):
    """Each character is a token, its code point the id. Every prompt has five."""

    def __init__(self, answer: str, prompt_end: str = "", **model: Any) -> None:
        """``model``: of its ``ModelInfo``."""
        super().__init__()
        self.answer = answer
        self.prompt_end = prompt_end
        self.stops_after: int | None = None
        """Characters, after which it fails."""
        self.finish_reason: FinishReason = "stop"
        self.stop_string: str | None = None
        self.num_cached_tokens = 0
        self.model = {"chat_template": HERMES, "added_tokens": {"<think>": 1}} | model
        """What is peculiar to it."""
        self.asked: list[GenerationRequest] = []

    async def start(self, config: EngineConfig) -> ModelInfo:
        return replace(await super().start(config), **self.model)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Prefill, None]:
        self.asked.append(request)
        yield Prefill(0, 5, self.prompt_end)
        for index in range(request.n):
            had = len(request.resume[index]) if request.resume else 0
            if had:
                yield self._delta(index, self.answer[:had], had, replayed=True)
            for number in range(had, len(self.answer)):
                if number == self.stops_after:
                    raise StepError("cut")
                one = self._delta(index, self.answer[number], number + 1)
                if request.sampling.logprobs is not None:
                    one = replace(one, logprobs=(_logprob(self.answer[number]),))
                yield one

    def _delta(self, index: int, text: str, end: int, *, replayed: bool = False) -> Delta:
        is_last = end == len(self.answer)
        thought, ended, _ = self.answer.removeprefix("<think>").partition("</think>")
        num_thought = max(0, end - len("<think>")) if ended else 0
        return Delta(
            index=index,
            text=text,
            token_ids=tuple(map(ord, text)),
            num_prompt_tokens=5,
            num_cached_tokens=self.num_cached_tokens,
            finish_reason=self.finish_reason if is_last else None,
            num_thought_tokens=min(num_thought, len(thought)),
            stop_string=self.stop_string if is_last else None,
            replayed=replayed,
        )


def _logprob(text: str) -> TokenLogprob:
    likely = TokenLogprob(0, "e", b"e", -0.1)
    return TokenLogprob(ord(text), text, text.encode(), -0.5, (likely,))


async def app_of(backend: Scripted, **model: Any) -> Starlette:
    backend.model |= model
    return build_replica_app(
        backend=backend,
        model=await backend.start(EngineConfig(backend="fake", model=MODEL)),
        secret=SECRET,
        registry=CollectorRegistry(),
        on_failure=lambda error_type: None,
        max_body_bytes=2**20,
        keep_alive_interval_s=60,
    )
