"""Whether a prompt is short enough."""

from __future__ import annotations

from deployments.backend import (
    ChatPrompt,
    ContextLengthError,
    GenerationRequest,
    Prompt,
    PromptTooLongError,
)


def check_num_tokens(
    request: GenerationRequest, num_tokens: int, max_model_len: int, *, least: str = ""
) -> None:
    """Raises ``ContextLengthError`` for a prompt that leaves no room, ``PromptTooLongError`` for
    one of more tokens than its key has left; ``least`` is ``"at least "`` where it has that many or
    more."""
    if num_tokens >= max_model_len:
        raise ContextLengthError(
            max_model_len,
            prompt=num_tokens,
            completion=request.sampling.max_tokens,
            param=param_of(request.prompt),
            least=least,
        )
    most = request.max_prompt_tokens
    if most is not None and num_tokens > most:
        raise PromptTooLongError(num_tokens, most, least=least)


def param_of(prompt: Prompt) -> str:
    """The field of the API that it comes from."""
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"
