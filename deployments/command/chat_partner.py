"""Who answers a chat: a server, or an engine in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Protocol
from uuid import uuid4

from deployments.backend import (
    ChatPrompt,
    Delta,
    EngineConfig,
    GenerationRequest,
    Prefill,
    create_backend,
)
from deployments.command.server_url import ServerError, get_json, open_url

SILENCE_S = 120.0
"""A server's keep-alives come more often."""

Message = dict[str, str]


@dataclass(frozen=True)
class Piece:
    """Of an answer, or of the thoughts before it."""

    text: str
    is_thought: bool = False


class Partner(Protocol):
    @property
    def name(self) -> str:
        """What it is called: its model, and where that runs."""
        ...

    def answer(self, messages: Sequence[Message]) -> Generator[Piece, None, None]:
        """Closing it ends the answer. Raises ``ServerError``, or ``BackendError`` of an engine."""
        ...


class ServerPartner:
    """``model``: one that the server has; its first by default. Raises ``ServerError``."""

    def __init__(self, url: str, model: str | None = None) -> None:
        self._url = url
        try:
            names = [str(one["id"]) for one in get_json(f"{url}/v1/models")["data"]]
        except (TypeError, KeyError):
            raise ServerError(f"{url} has no list of models") from None
        if not names:
            raise ServerError(f"{url} serves no model yet")
        if model is not None and model not in names:
            raise ServerError(f"{url} serves no {model!r}; it serves {', '.join(names)}")
        self._model = model or names[0]

    @property
    def name(self) -> str:
        return f"{self._model} at {self._url}"

    def answer(self, messages: Sequence[Message]) -> Generator[Piece, None, None]:
        body = {"model": self._model, "messages": list(messages), "stream": True}
        url = f"{self._url}/v1/chat/completions"
        with open_url(url, body, timeout_s=SILENCE_S) as response:
            try:
                for line in response:
                    name, _, data = line.decode(errors="replace").partition(":")
                    if name != "data":
                        continue
                    if data.strip() == "[DONE]":
                        return
                    yield from _pieces(json.loads(data))
            except (OSError, HTTPException, ValueError) as error:
                raise ServerError(f"the answer broke off: {error}") from None
        raise ServerError("the answer broke off")


class EnginePartner:
    """Loads ``model`` with ``backend``. Raises ``ValueError`` saying why it can't be served."""

    def __init__(self, backend: str, model: str) -> None:
        config = EngineConfig(backend=backend, model=model, max_num_seqs=1)
        self._backend = create_backend(backend)
        self._runner = asyncio.Runner()
        self._model = self._runner.run(self._backend.start(config))

    @property
    def name(self) -> str:
        return f"{self._model.name} in this process"

    def answer(self, messages: Sequence[Message]) -> Generator[Piece, None, None]:
        prompt = ChatPrompt(tuple(messages))
        request = GenerationRequest(uuid4().hex, prompt, self._model.default_sampling)
        items = self._backend.generate(request)
        try:
            while item := self._runner.run(_next(items)):
                if isinstance(item, Delta) and item.text:
                    yield Piece(item.text)
        finally:
            self._runner.run(items.aclose())

    def close(self) -> None:
        self._runner.run(self._backend.stop())
        self._runner.close()


async def _next(items: AsyncGenerator[Delta | Prefill, None]) -> Delta | Prefill | None:
    return await anext(items, None)


def _pieces(event: Any) -> Generator[Piece, None, None]:
    """Of one chunk of a streamed chat completion."""
    if "error" in event:
        raise ServerError(str(event["error"].get("message", "the server failed")))
    for choice in event.get("choices", ()):
        delta = choice.get("delta") or {}
        if thought := delta.get("reasoning_content"):
            yield Piece(thought, is_thought=True)
        if text := delta.get("content"):
            yield Piece(text)
