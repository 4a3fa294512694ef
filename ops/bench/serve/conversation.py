"""Conversations as they are planned, and the requests that they become as answers come."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ops.bench.serve.answer import Answer
from ops.bench.serve.target import Sampling, Target

Text = str | tuple[int, ...]
"""Of a prompt; ids of tokens only for completions."""


@dataclass(frozen=True)
class Turn:
    """``added`` to all that was said before, and an answer of ``max_tokens`` asked for."""

    added: Text
    max_tokens: int
    pause_s: float = 0.0
    """Before it is sent: what a tool or a person takes."""


@dataclass(frozen=True)
class Conversation:
    turns: tuple[Turn, ...]
    system: Text = ""
    """What it begins with, and others as well."""


@dataclass(frozen=True)
class Request:
    """``number`` is the conversation's, ``turn`` counts from 0."""

    number: int
    turn: int
    body: bytes
    max_tokens: int
    prompt_tokens: int | None = None
    """As the server must count them; None: only it can."""
    all_tokens: bool = False
    """Whether nothing but ``max_tokens`` may end the answer."""
    wants_ids: bool = False
    """Whether each event is to tell its tokens."""


class Dialogue:
    """One conversation as far as it has come."""

    def __init__(
        self, target: Target, sampling: Sampling, conversation: Conversation, number: int
    ) -> None:
        self._target = target
        self._sampling = sampling
        self._number = number
        self._turn = -1
        self._messages: list[dict[str, str]] = []
        self._prompt: Text = conversation.system or conversation.turns[0].added[:0]
        if conversation.system and target.api == "chat":
            self._messages.append({"role": "system", "content": str(conversation.system)})

    def ask(self, turn: Turn) -> Request:
        self._turn += 1
        said: dict[str, Any]
        if self._target.api == "chat":
            self._messages.append({"role": "user", "content": str(turn.added)})
            said = {"messages": self._messages}
        else:
            self._prompt = _joined(self._prompt, turn.added)
            said = {"prompt": self._prompt}
        server = self._target.server
        body = {
            "model": self._target.model,
            **said,
            "max_tokens": turn.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"return_token_ids": True} if server.tells_token_ids else {}),
            **self._sampling.as_fields(server, self._number),
        }
        by_ids = self._target.api == "completions" and not isinstance(self._prompt, str)
        return Request(
            self._number,
            self._turn,
            json.dumps(body).encode(),
            turn.max_tokens,
            len(self._prompt) if by_ids else None,
            self._sampling.ignore_eos and server.knows_ignore_eos,
            server.tells_token_ids,
        )

    def hear(self, answer: Answer) -> None:
        if self._target.api == "chat":
            self._messages.append({"role": "assistant", "content": answer.text})
        elif isinstance(self._prompt, str):
            self._prompt += answer.text
        else:
            self._prompt = _joined(self._prompt, answer.token_ids or ())


def check(target: Target, conversation: Conversation) -> None:
    """Raises ``ValueError`` for what the target can't be told."""
    if not conversation.turns:
        raise ValueError("a conversation needs a turn")
    said = (conversation.system, *(turn.added for turn in conversation.turns))
    kinds = {type(one) for one in said if one}
    if tuple not in kinds:
        return
    if str in kinds:
        raise ValueError("a conversation is either of texts or of token ids")
    if target.api == "chat":
        raise ValueError("chats are of texts: token ids are for completions")
    if len(conversation.turns) > 1 and not target.server.tells_token_ids:
        raise ValueError(
            f"{target.server.name} tells no token ids, which the next turn's prompt would need"
        )


def _joined(first: Text, second: Text) -> Text:
    if isinstance(first, str):
        assert isinstance(second, str)
        return first + second
    assert isinstance(second, tuple)
    return first + second
