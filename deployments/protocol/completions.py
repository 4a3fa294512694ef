"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PlainValidator, model_validator

from deployments.http.errors import shown
from deployments.protocol import unsupported
from deployments.protocol.common import (
    CHARS_PER_TOKEN,
    MAX_LOGPROBS,
    GenerationFields,
    PromptSize,
    TokenId,
    likely_new_tokens,
    num_bytes,
)
from deployments.protocol.strict import RefusedError

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 256
SPECIAL_TOKENS = 8
"""That a tokenizer may put around a text, and what stands around a suffix."""
PIECE_TOKENS = 4096

TextOrTokens = str | tuple[int, ...]
TextAsSent = Annotated[str, Field(min_length=1)]
TokensAsSent = Annotated[list[TokenId], Field(min_length=1)]
PromptsAsSent = (
    TextAsSent
    | TokensAsSent
    | Annotated[list[TextAsSent | TokensAsSent], Field(min_length=1, max_length=MAX_PROMPTS)]
)


def allowed_prompts(most: int) -> str:
    return (
        "a non-empty string, an array of token ids, or a non-empty array of at most "
        f"{most} of either"
    )


def parse_prompts(value: Any, most: int = MAX_PROMPTS) -> tuple[TextOrTokens, ...]:
    """Raises ``RefusedError``."""
    if isinstance(value, str):
        return (_parse_prompt(value, where=""),)
    if not isinstance(value, list) or not value:
        raise RefusedError(f"must be {allowed_prompts(most)}, not {shown(value)}")
    if _is_integer(value[0]):
        return (_parse_prompt(value, where=""),)
    if len(value) > most:
        raise RefusedError(f"must be {allowed_prompts(most)}; {len(value)} were sent")
    return tuple(_parse_prompt(prompt, where=f"[{i}]") for i, prompt in enumerate(value))


def _parse_prompt(value: Any, where: str) -> TextOrTokens:
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list) or not value:
        raise RefusedError(
            f"must be a non-empty string or array of token ids, not {shown(value)}", where=where
        )
    if {*map(type, value)} != {int} or min(value) < 0 or max(value) >= 2**31:
        index, token = next(item for item in enumerate(value) if not _is_token_id(item[1]))
        raise RefusedError(f"must be a token id, not {shown(token)}", where=f"{where}[{index}]")
    return tuple(value)


def _is_token_id(value: Any) -> bool:
    return _is_integer(value) and 0 <= value < 2**31


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class CompletionRequest(GenerationFields):
    unsupported: ClassVar = unsupported.COMPLETION_FIELDS

    prompt: Annotated[
        tuple[TextOrTokens, ...],
        PlainValidator(parse_prompts, json_schema_input_type=PromptsAsSent),
    ] = Field(description=allowed_prompts(MAX_PROMPTS))
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description=f"an integer from 0 to {MAX_LOGPROBS}"
    )

    echo: bool = Field(False, description="a boolean")
    suffix: str = Field("", description="a string")

    @model_validator(mode="after")
    def _texts_have_a_suffix(self) -> Self:
        if not self.suffix:
            return self
        if not all(isinstance(prompt, str) for prompt in self.prompt):
            raise RefusedError("is only allowed with prompts that are strings", where=".suffix")
        if self.echo:
            raise RefusedError("can't be combined with echo", where=".suffix")
        return self

    @property
    def max_new_tokens(self) -> int:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        both = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((one for one in both if one is not None), default=None)

    @property
    def tells_prompt(self) -> bool:
        return self.return_token_ids or self.echo

    def prompt_parts(self) -> Iterator[str | bytes]:
        """The first prompt, as text or as 32-bit token ids, for routing."""
        prompt = self.prompt[0]
        if isinstance(prompt, str):
            yield prompt
            yield self.suffix
            return
        # In pieces, since only the first are read of a long one.
        for start in range(0, len(prompt), PIECE_TOKENS):
            yield array("i", prompt[start : start + PIECE_TOKENS]).tobytes()

    @property
    def num_sequences(self) -> int:
        """Continuations that are generated at the same time."""
        return len(self.prompt) * self.n

    def prompt_size_estimate(self) -> int:
        """Tokens of all prompts, roughly, for routing."""
        return sum(
            (len(prompt) + len(self.suffix)) // CHARS_PER_TOKEN + 1
            if isinstance(prompt, str)
            else len(prompt)
            for prompt in self.prompt
        )

    def prompt_sizes(self) -> tuple[PromptSize, ...]:
        """Tokens of each prompt, for limits."""
        suffix = num_bytes(self.suffix)
        return tuple(
            self.truncated(
                PromptSize.of_bytes(num_bytes(prompt) + suffix, added=SPECIAL_TOKENS)
                if isinstance(prompt, str)
                else PromptSize(len(prompt), len(prompt))
            )
            for prompt in self.prompt
        )

    def max_new_tokens_estimate(self) -> int:
        """Tokens that may be generated, over all choices, roughly, for routing."""
        return len(self.prompt) * self.n * likely_new_tokens(self.max_new_tokens)
