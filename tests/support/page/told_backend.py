"""A backend that says what its test has told it to, a word a token, and stops where it is held."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from deployments.backend import (
    BackendStats,
    ChatPrompt,
    Delta,
    EngineConfig,
    GenerationRequest,
    ModelInfo,
    Prefill,
)
from tests.support.deployments.fake_backend import FakeBackend, token_id

PIECES = re.compile(r"\s*\S+|\s+$")
TEMPLATE = "{{ message.content }}<think>{{ messages[0] }}</think><tool_call>{{ tools }}</tool_call>"
"""Never rendered; it tells how thoughts and calls are written."""


def echo(question: str) -> str:
    return f"You said: {question}"


class ToldBackend(FakeBackend):
    """All prompts have 100 tokens, 64 of them cached from the second time on."""

    def __init__(self) -> None:
        super().__init__()
        self.says: Callable[[str], str] = echo
        """From the last message to the answer."""
        self.pause_s = 0.0
        """After each token."""
        self.hold_at: int | None = None
        """Tokens after which an answer waits; ``let_go`` has it go on."""
        self.hold_prompt_at: int | None = None
        """Tokens of a prompt after which the rest of it waits for ``let_prompt_go``."""
        self._go = asyncio.Event()
        self._prompt_goes = asyncio.Event()
        self._num_asked = 0
        self._num_generated = 0

    async def start(self, config: EngineConfig) -> ModelInfo:
        model = await super().start(config)
        return replace(model, chat_template=TEMPLATE, added_tokens={"<think>": 1, "</think>": 2})

    def let_go(self) -> None:
        self.hold_at = None
        self._go.set()
        self.let_prompt_go()

    def let_prompt_go(self) -> None:
        self.hold_prompt_at = None
        self._prompt_goes.set()

    def hold_prompt(self, *, after_tokens: int) -> None:
        self.hold_prompt_at = after_tokens
        self._prompt_goes.clear()

    def hold(self, *, after_tokens: int = 0) -> None:
        self.hold_at = after_tokens
        self._go.clear()

    def stats(self) -> BackendStats:
        return replace(
            super().stats(),
            generation_tokens=self._num_generated,
            prompt_tokens=100 * self._num_asked,
            prefix_cache_query_tokens=100 * self._num_asked,
            prefix_cache_hit_tokens=64 * max(self._num_asked - 1, 0),
            kv_cache_blocks_total=1000,
            kv_cache_blocks_free=1000 - 60 * self.live.value,
            kv_cache_blocks_cached=min(250, 40 * self._num_asked),
            memory_active_bytes=9 << 30,
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Prefill, None]:
        assert isinstance(request.prompt, ChatPrompt)
        self.requests.append(request)
        pieces = PIECES.findall(self.says(str(request.prompt.messages[-1]["content"])))
        self._num_asked += 1
        cached = 64 if self._num_asked > 1 else 0
        had = len(request.resume[0]) if request.resume else 0
        self.live.add(1)
        try:
            computed = [0, cached, *filter(None, [self.hold_prompt_at])]
            for made in (Prefill(one, 100) for one in computed):
                request.on_made(made)
                yield made
            if self.hold_prompt_at is not None:
                await self._prompt_goes.wait()
            if had:
                delta = _delta(pieces, 0, had, cached)
                yield replace(delta, replayed=True)
            for at in range(had, len(pieces)):
                if at == self.hold_at:
                    await self._go.wait()
                await asyncio.sleep(self.pause_s)
                self._num_generated += 1
                delta = _delta(pieces, at, at + 1, cached)
                request.on_made(delta)
                yield delta
        finally:
            self.live.add(-1)


def _delta(pieces: list[str], begin: int, end: int, cached: int) -> Delta:
    said = pieces[begin:end]
    return Delta(
        index=0,
        text="".join(said),
        token_ids=tuple(map(token_id, said)),
        num_prompt_tokens=100,
        num_cached_tokens=cached,
        finish_reason="stop" if end == len(pieces) else None,
    )
