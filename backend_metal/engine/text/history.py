"""What of a conversation stays as it is when it goes on."""

from __future__ import annotations

from dataclasses import replace

from deployments.backend import ChatPrompt


def other_conversation(prompt: ChatPrompt, text: str) -> ChatPrompt | None:
    """One with the same history, which says ``text`` in place of the last message of the user, and
    which has gone on behind that. What the renderings of both begin with depends neither on that
    message nor on its being the last. None where no user says anything."""
    users = [at for at, one in enumerate(prompt.messages) if one.get("role") == "user"]
    if not users:
        return None
    user = {"role": "user", "content": text}
    turn = (user, {"role": "assistant", "content": text}, user)
    return replace(
        prompt, messages=(*prompt.messages[: users[-1]], *turn), continues_final_message=False
    )


def common_length(one: str, other: str) -> int:
    """Of the longest text that both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
