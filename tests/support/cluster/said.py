"""What an answer says, added up from its events, whichever API tells of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.cluster.requests import MESSAGES, RESPONSES

Event = Mapping[str, Any]
Part = Literal["text", "thought", "call"]


@dataclass(frozen=True)
class Said:
    """All of an answer that must not depend on what happens to the cluster meanwhile."""

    text: str
    tokens: tuple[str, ...]
    """Of a request that asks for logprobs."""
    finish_reasons: tuple[str, ...]
    prompt_tokens: int
    completion_tokens: int
    thought: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Names of tools, and arguments."""


@dataclass
class Saying:
    """An answer, as far as it has come."""

    text: list[str] = field(default_factory=list)
    thought: list[str] = field(default_factory=list)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def said(self) -> Said:
        return Said(
            "".join(self.text),
            tuple(self.tokens),
            tuple(self.finish_reasons),
            self.usage.get("prompt_tokens", 0),
            self.usage.get("completion_tokens", 0),
            "".join(self.thought),
            tuple((name, "".join(arguments)) for name, arguments in self.calls),
        )

    @property
    def num_pieces(self) -> dict[Part, int]:
        arguments = sum(len(pieces) for _, pieces in self.calls)
        return {"text": len(self.text), "thought": len(self.thought), "call": arguments}

    def take(self, path: str, event: Event) -> bool:
        """Of a stream of that endpoint. Returns whether it says that nothing follows it."""
        return _TAKERS.get(path, _take_chunk)(self, event)

    def take_whole(self, answer: Event) -> None:
        """The response to a chat or a completion that asked for no stream."""
        self.usage = answer["usage"]
        for choice in answer["choices"]:
            self.take_choice({"delta": choice.get("message", {}), **choice})

    def take_choice(self, choice: Event) -> None:
        delta = choice.get("delta", {})
        if text := choice.get("text") or delta.get("content"):
            self.text.append(text)
        if thought := delta.get("reasoning_content"):
            self.thought.append(thought)
        for call in delta.get("tool_calls") or []:
            if name := call["function"].get("name"):
                self.calls.append((name, []))
            self.add_arguments(call["function"]["arguments"])
        if reason := choice["finish_reason"]:
            self.finish_reasons.append(reason)
        logprobs = choice.get("logprobs") or {}
        self.tokens += logprobs.get("tokens") or []
        self.tokens += [one["token"] for one in logprobs.get("content") or []]

    def add_arguments(self, text: str) -> None:
        _, arguments = self.calls[-1]
        if text:
            arguments.append(text)

    def end(self, reason: str, usage: Event) -> None:
        self.finish_reasons.append(reason)
        # Anthropic's leaves out what was cached, which losses change.
        num_cached = usage.get("cache_read_input_tokens", 0)
        self.usage = {
            "prompt_tokens": usage["input_tokens"] + num_cached,
            "completion_tokens": usage["output_tokens"],
        }


def _take_chunk(saying: Saying, event: Event) -> bool:
    saying.usage = event.get("usage") or saying.usage
    for choice in event["choices"]:
        saying.take_choice(choice)
    return False


def _take_responses(saying: Saying, event: Event) -> bool:
    match event:
        case {"type": "response.output_text.delta", "delta": text}:
            saying.text.append(text)
        case {"type": "response.reasoning_text.delta", "delta": text}:
            saying.thought.append(text)
        case {"type": "response.output_item.added", "item": {"type": "function_call", **item}}:
            saying.calls.append((item["name"], []))
        case {"type": "response.function_call_arguments.delta", "delta": text}:
            saying.add_arguments(text)
        case {"type": "response.completed" | "response.incomplete", "response": response}:
            saying.end(response["status"], response["usage"])
    return False


def _take_messages(saying: Saying, event: Event) -> bool:
    match event:
        case {"type": "content_block_start", "content_block": {"type": "tool_use", **block}}:
            saying.calls.append((block["name"], []))
        case {"type": "content_block_delta", "delta": {"text": text}}:
            saying.text.append(text)
        case {"type": "content_block_delta", "delta": {"thinking": text}}:
            saying.thought.append(text)
        case {"type": "content_block_delta", "delta": {"partial_json": text}}:
            saying.add_arguments(text)
        case {"type": "message_delta"}:
            saying.end(event["delta"]["stop_reason"], event["usage"])
    return bool(event["type"] == "message_stop")


_TAKERS: Mapping[str, Callable[[Saying, Event], bool]] = {
    RESPONSES: _take_responses,
    MESSAGES: _take_messages,
}
