"""What is refused before it costs anything, and with which figures."""

from __future__ import annotations

import math

from deployments.backend import (
    ChatPrompt,
    ContextLengthError,
    GenerationRequest,
    InvalidRequestError,
    Prompt,
    QueueFullError,
    ResumeError,
)

LONGEST_RETRY_SECONDS = 60


def check_text_size(request: GenerationRequest, longest_token: int, max_model_len: int) -> None:
    """Raises ``ContextLengthError`` for a text too long to fit however well it is tokenized.

    ``longest_token``: characters of the vocabulary's longest token.
    """
    prompt = request.prompt
    texts = [prompt] if isinstance(prompt, str) else []
    if isinstance(prompt, ChatPrompt):
        texts = [text for message in prompt.messages if (text := message.get("content"))]
    num_characters = sum(len(text) for text in texts if isinstance(text, str))
    if num_characters >= longest_token * max_model_len:
        raise ContextLengthError(
            max_model_len,
            prompt=num_characters // longest_token,
            completion=request.sampling.max_tokens,
            param=_param(prompt),
            least="at least ",
        )


def check_tokens(
    request: GenerationRequest, num_prompt_tokens: int, *, max_model_len: int, vocab_size: int
) -> None:
    """Raises ``InvalidRequestError`` for a prompt that leaves no room, or an unknown token id."""
    if num_prompt_tokens >= max_model_len:
        raise ContextLengthError(
            max_model_len,
            prompt=num_prompt_tokens,
            completion=request.sampling.max_tokens,
            param=_param(request.prompt),
        )
    for param, token_ids in (
        ("logit_bias", request.sampling.logit_bias),
        ("stop_token_ids", request.sampling.stop_token_ids),
    ):
        unknown = [token for token in token_ids if not 0 <= token < vocab_size]
        if unknown:
            raise InvalidRequestError(
                f"{param} has token id {unknown[0]}; the vocabulary ends at {vocab_size - 1}",
                param=param,
            )


def _param(prompt: Prompt) -> str:
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"


def check_resume(request: GenerationRequest, *, vocab_size: int) -> None:
    """Raises ``ResumeError`` for output that can't be this model's."""
    for token_ids in request.resume:
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
            raise ResumeError(
                f"the output to resume has token ids {min(token_ids)} to {max(token_ids)}; the "
                f"model's are 0 to {vocab_size - 1}"
            )


def check_queue(
    *,
    num_waiting: int,
    num_free_slots: int,
    max_queued_requests: int,
    retry_after: int,
) -> None:
    """Raises ``QueueFullError`` when as many requests wait as may, beyond the free slots."""
    if num_waiting - num_free_slots < max_queued_requests:
        return
    raise QueueFullError(
        f"{num_waiting} requests are waiting, as many as max_queued_requests allows",
        retry_after=retry_after,
    )


def retry_after(*, num_running: int, num_waiting: int, seconds_per_request: float) -> int:
    """Whole seconds until as many requests have ended as wait now, within bounds.

    ``seconds_per_request``: what one takes once it runs.
    """
    rounds = max(1, num_waiting) / max(1, num_running)
    return min(LONGEST_RETRY_SECONDS, max(1, math.ceil(seconds_per_request * rounds)))
