"""What one request got, and a reader of the events that it is streamed as."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

DONE = b"[DONE]"
DATA = b"data:"


@dataclass(frozen=True)
class Usage:
    """As the server counts."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Of the prompt's."""


@dataclass(frozen=True)
class Answer:
    """Times by ``time.perf_counter``, in seconds."""

    number: int
    turn: int
    """Which of its conversation, ``number``."""
    due: float
    """When it was to be sent."""
    sent: float
    """When it was handed to its connection."""
    ended: float
    status: int = 0
    """0: no answer came."""
    error: str = ""
    """Of the connection, of the status, or of an event; empty if there was none."""
    retry_after: str = ""
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    """None: the server did not tell."""
    times: tuple[float, ...] = ()
    """Of each event that brought one token or more."""
    finish_reasons: tuple[str, ...] = ()
    done: bool = False
    """Whether the stream's last event came."""
    usage: Usage | None = None
    faults: tuple[str, ...] = ()
    """What is wrong with it; of one that was refused there are none."""

    @property
    def is_refused(self) -> bool:
        """Told to come back."""
        return self.status == 429

    @property
    def is_good(self) -> bool:
        return not (self.faults or self.is_refused)

    @property
    def num_tokens(self) -> int:
        """By the server's count, where there is one."""
        if self.usage is not None:
            return self.usage.completion_tokens
        return len(self.times) if self.token_ids is None else len(self.token_ids)

    @property
    def time_to_first_token(self) -> float:
        """Only of one that has a token; as all that follow."""
        return self.times[0] - self.sent

    @property
    def time_per_output_token(self) -> float:
        """After the first; only of one that has two."""
        return (self.times[-1] - self.times[0]) / (self.num_tokens - 1)

    @property
    def inter_token_latencies(self) -> list[float]:
        """Between the events; tokens that came together are one."""
        return [later - one for one, later in zip(self.times, self.times[1:], strict=False)]

    @property
    def latency(self) -> float:
        """To the last token."""
        return self.times[-1] - self.sent


@dataclass
class EventReader:
    """The data of server-sent events, as bytes come."""

    _held: bytes = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        *lines, self._held = (self._held + data).split(b"\n")
        for line in lines:
            if line.startswith(DATA):
                yield line[len(DATA) :].strip()


@dataclass
class Heard:
    """An answer as far as it has come."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] | None = None
    times: list[float] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    done: bool = False
    usage: Usage | None = None
    error: str = ""

    def hear(self, data: bytes, now: float) -> None:
        """The ``data`` of one event. Raises ``ValueError`` and its like where it is none of
        OpenAI's."""
        if self.done:
            raise ValueError(f"an event behind the last one: {shown(data)}")
        if data == DONE:
            self.done = True
            return
        event = json.loads(data)
        if error := event.get("error"):
            raise ValueError(f"the stream ends with an error: {shown(json.dumps(error))}")
        if usage := event.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            self.usage = Usage(
                usage["prompt_tokens"],
                usage["completion_tokens"],
                details.get("cached_tokens") or 0,
            )
        for choice in event.get("choices") or ():
            self._hear_choice(choice, now)

    def _hear_choice(self, choice: dict[str, Any], now: float) -> None:
        if choice.get("index", 0) != 0:
            raise ValueError("an answer has more than one choice")
        ids = choice.get("token_ids")
        if ids is not None:
            self.token_ids = (self.token_ids or []) + ids
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        self.text.append(text)
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if ids or (ids is None and (text or thought or delta.get("tool_calls"))):
            self.times.append(now)
        if reason := choice.get("finish_reason"):
            self.finish_reasons.append(reason)


def shown(text: str | bytes, most: int = 200) -> str:
    said = text if isinstance(text, str) else text.decode(errors="replace")
    return said if len(said) <= most else f"{said[:most]}..."
