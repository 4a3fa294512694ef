"""A Messages API whose answers are written beforehand, and which keeps what it is asked."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from deployments.protocol.anthropic.events import delta_event, event
from ops.bench.sessions.recording import KEPT_HEADERS, RecordedRequest

TITLE = '{"title": "Work on the sources"}'


@dataclass(frozen=True)
class Answer:
    """A thought, words, and the call of a tool; without one it ends a turn."""

    text: str
    thought: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


class ScriptedModel:
    """For one session at a time. Whoever may use tools gets the next answer; other requests, which
    clients make beside the conversation, are asked for a title."""

    def __init__(self) -> None:
        self.app = Starlette(
            routes=[
                Route("/", lambda _: Response(), methods=["HEAD"]),
                Route("/v1/messages", self._messages, methods=["POST"]),
            ]
        )
        self._answers: deque[Answer] = deque()
        self._recorded: list[RecordedRequest] = []
        self._began = 0.0
        self._turn_ended = asyncio.Event()

    def begin(self) -> None:
        """A session."""
        self._recorded = []
        self._began = time.monotonic()

    def end(self) -> list[RecordedRequest]:
        """What it was asked since."""
        return self._recorded

    def prepare(self, answers: Sequence[Answer]) -> None:
        """A turn."""
        self._turn_ended.clear()
        self._answers = deque(answers)

    async def turn_end(self) -> None:
        await self._turn_ended.wait()

    async def _messages(self, request: Request) -> Response:
        arrived_s = time.monotonic() - self._began
        body = await request.json()
        answer = self._answers.popleft() if body.get("tools") else Answer(TITLE)
        kept = {name: request.headers[name] for name in KEPT_HEADERS if name in request.headers}

        def told() -> Iterator[str]:
            yield from _events(answer, f"{len(self._recorded):04}", body["model"])
            answered_s = time.monotonic() - self._began
            self._recorded.append(RecordedRequest(arrived_s, answered_s, kept, body))
            if body.get("tools") and not self._answers:
                self._turn_ended.set()

        return StreamingResponse(told(), media_type="text/event-stream")


def _events(answer: Answer, name: str, model: str) -> Iterator[str]:
    message: dict[str, Any] = {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    yield event("message_start", message=message)
    blocks: list[tuple[dict[str, Any], list[tuple[str, str, str]]]] = []
    if answer.thought:
        deltas = [
            ("thinking_delta", "thinking", answer.thought),
            ("signature_delta", "signature", "-"),
        ]
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    if answer.text:
        blocks.append(({"type": "text", "text": ""}, [("text_delta", "text", answer.text)]))
    if answer.tool:
        call = {"type": "tool_use", "id": f"toolu_{name}", "name": answer.tool, "input": {}}
        arguments = json.dumps(answer.arguments)
        blocks.append((call, [("input_json_delta", "partial_json", arguments)]))
    for index, (block, deltas) in enumerate(blocks):
        yield event("content_block_start", index=index, content_block=block)
        for kind, member, text in deltas:
            yield delta_event(index, kind, member, text)
        yield event("content_block_stop", index=index)
    reason = "tool_use" if answer.tool else "end_turn"
    delta = {"stop_reason": reason, "stop_sequence": None}
    yield event("message_delta", delta=delta, usage={"output_tokens": 8})
    yield event("message_stop")
