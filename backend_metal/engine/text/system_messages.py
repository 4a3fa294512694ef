"""System messages where a chat template has no place for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

Messages = list[dict[str, Any]]


def folded(messages: Messages) -> Iterator[Messages]:
    """Yield rewritten messages, in the order to try them: one leading system message, with later
    ones moved into the user's turn; then all system messages in the user's turn."""
    first = [*takewhile(_is_system, messages)]
    rest = messages[len(first) :]
    if any(map(_is_system, messages[1:])):
        system = [{"role": "system", "content": _joined(first)}] if first else []
        yield [*system, *_in_turns(rest)]
    if first and any(message.get("role") == "user" for message in rest):
        yield _in_turns(messages)


def _is_system(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "system"


def _in_turns(messages: Messages) -> Messages:
    """Move each system message into the user's turn at its position."""
    told: Messages = []
    was_system = False
    for message in messages:
        system = _is_system(message)
        if system:
            message = {"role": "user", "content": message["content"]}
        if (
            told
            and told[-1].get("role") == message.get("role") == "user"
            and (system or was_system)
        ):
            told[-1] = {**told[-1], "content": _joined([told[-1], message])}
        else:
            told.append(message)
        was_system = system or (was_system and message.get("role") == "user")
    return told


def _joined(messages: Messages) -> str:
    return "\n\n".join(message["content"] for message in messages)
