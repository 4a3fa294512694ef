"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator

from deployments.http.errors import shown
from deployments.protocol import unsupported
from deployments.protocol.common import (
    CHARS_PER_TOKEN,
    MAX_LOGPROBS,
    GenerationFields,
    TokenId,
)
from deployments.protocol.strict import RefusedError

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 256

TextOrTokens = str | tuple[int, ...]
TextAsSent = Annotated[str, Field(min_length=1)]
TokensAsSent = Annotated[list[TokenId], Field(min_length=1)]
PromptsAsSent = (
    TextAsSent
    | TokensAsSent
    | Annotated[list[TextAsSent | TokensAsSent], Field(min_length=1, max_length=MAX_PROMPTS)]
)

_ALLOWED = (
    "a non-empty string, an array of token ids, or a non-empty array of at most "
    f"{MAX_PROMPTS} of either"
)


def _parse_prompts(value: Any) -> tuple[TextOrTokens, ...]:
    if isinstance(value, str):
        return (_parse_prompt(value, where=""),)
    if not isinstance(value, list) or not value:
        raise RefusedError(f"must be {_ALLOWED}, not {shown(value)}")
    if _is_integer(value[0]):
        return (_parse_prompt(value, where=""),)
    if len(value) > MAX_PROMPTS:
        raise RefusedError(f"must be {_ALLOWED}; {len(value)} were sent")
    return tuple(_parse_prompt(prompt, where=f"[{i}]") for i, prompt in enumerate(value))


def _parse_prompt(value: Any, where: str) -> TextOrTokens:
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list) or not value:
        raise RefusedError(
            f"must be a non-empty string or array of token ids, not {shown(value)}", where=where
        )
    for i, token in enumerate(value):
        if not _is_integer(token) or not 0 <= token < 2**31:
            raise RefusedError(f"must be a token id, not {shown(token)}", where=f"{where}[{i}]")
    return tuple(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class CompletionRequest(GenerationFields):
    unsupported: ClassVar = unsupported.COMPLETION_FIELDS

    prompt: Annotated[
        tuple[TextOrTokens, ...],
        PlainValidator(_parse_prompts, json_schema_input_type=PromptsAsSent),
    ] = Field(description=_ALLOWED)
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description=f"an integer from 0 to {MAX_LOGPROBS}"
    )

    @property
    def max_new_tokens(self) -> int:
        return self.max_tokens or DEFAULT_MAX_TOKENS

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    def prompt_parts(self) -> Iterator[str | bytes]:
        """The first prompt, as text or as 32-bit token ids, for routing."""
        prompt = self.prompt[0]
        yield prompt if isinstance(prompt, str) else array("i", prompt).tobytes()

    @property
    def num_sequences(self) -> int:
        """Continuations that are generated at the same time."""
        return len(self.prompt) * self.n

    def prompt_size_estimate(self) -> int:
        """Tokens of all prompts, roughly, for routing."""
        return sum(
            len(prompt) // CHARS_PER_TOKEN + 1 if isinstance(prompt, str) else len(prompt)
            for prompt in self.prompt
        )

    def max_new_tokens_estimate(self) -> int:
        """Tokens that may be generated, over all choices, for routing."""
        return len(self.prompt) * self.n * self.max_new_tokens
