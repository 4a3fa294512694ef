"""Whether a prompt can fit at all, which needs no tokenizer."""

from __future__ import annotations

from deployments.backend import ContextLengthError
from deployments.http.errors import ApiError, api_error_from
from deployments.protocol.completions import CompletionRequest
from deployments.protocol.parsed import ParsedRequest, in_own_names


def context_error(
    parsed: ParsedRequest, *, max_model_len: int, longest_token: int
) -> ApiError | None:
    """What an engine says to a prompt that leaves no room in ``max_model_len`` tokens, however it
    is tokenized; None if that is for an engine to find out. ``longest_token``: characters of a text
    that one token takes, at most."""
    form = parsed.form
    least, is_exact = _least_tokens(parsed, longest_token)
    if least + (form.max_new_tokens != 0) <= max_model_len:
        return None
    error = ContextLengthError(
        max_model_len,
        prompt=least,
        completion=form.max_new_tokens,
        param="prompt" if isinstance(form, CompletionRequest) else "messages",
        or_more=not is_exact,
    )
    return in_own_names(api_error_from(error), parsed.own_names)


def _least_tokens(parsed: ParsedRequest, longest_token: int) -> tuple[int, bool]:
    """Of the longest prompt, and whether it has no more. What is truncated is as short as it has to
    be."""
    form = parsed.form
    if form.truncate_prompt_tokens is not None:
        return 0, False
    if not isinstance(form, CompletionRequest):
        texts = (part.text for message in form.messages for part in message.content)
        return sum(map(len, texts)) // longest_token, False
    return max(
        (len(prompt) // longest_token, False) if isinstance(prompt, str) else (len(prompt), True)
        for prompt in form.prompt
    )
