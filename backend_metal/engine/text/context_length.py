"""Whether a prompt is short enough."""

from __future__ import annotations

from typing import Protocol

from deployments.backend import ContextLengthError, Prompt, PromptTooLongError


class Prompted(Protocol):
    """What is known of a prompt before it is tokenized."""

    @property
    def prompt(self) -> Prompt: ...

    @property
    def param(self) -> str:
        """The field of the API that it comes from."""
        ...

    @property
    def max_prompt_tokens(self) -> int | None:
        """That its key has left."""
        ...

    @property
    def truncate_prompt_tokens(self) -> int | None:
        """Tokens that are read of a longer one; -1: as many as fit; None: it is refused."""
        ...

    @property
    def max_new_tokens(self) -> int | None:
        """That may follow it; None: until the context is full."""
        ...


def check_num_tokens(
    request: Prompted, num_tokens: int, max_model_len: int, *, or_more: bool = False
) -> None:
    """Raises ``ContextLengthError`` for a prompt that leaves no room, ``PromptTooLongError`` for
    one of more tokens than its key has left; ``or_more``: whether it may have more than these."""
    if num_tokens + (request.max_new_tokens != 0) > max_model_len:
        raise ContextLengthError(
            max_model_len,
            prompt=num_tokens,
            completion=request.max_new_tokens,
            param=request.param,
            or_more=or_more,
        )
    most = request.max_prompt_tokens
    if most is not None and num_tokens > most:
        raise PromptTooLongError(num_tokens, most, or_more=or_more)
