"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, FailFast, Field, model_validator

from deployments.http.errors import shown
from deployments.protocol import unsupported
from deployments.protocol.common import (
    CHARS_PER_TOKEN,
    MAX_LOGPROBS,
    UNBOUNDED_NEW_TOKENS_ESTIMATE,
    GenerationFields,
)
from deployments.protocol.strict import RefusedError, StrictModel

MESSAGE_OVERHEAD_TOKENS = 4
MAX_TEMPLATE_ARGUMENT_DEPTH = 16
MAX_MESSAGES = 4096


def _as_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _template_variables(value: Any) -> Any:
    for name in value if isinstance(value, dict) else ():
        if not name.isidentifier():
            raise RefusedError(f"must not set {shown(name)}")
    if _is_deeper(value, MAX_TEMPLATE_ARGUMENT_DEPTH):
        raise RefusedError(f"must nest at most {MAX_TEMPLATE_ARGUMENT_DEPTH} levels deep")
    return value


def _is_deeper(value: Any, limit: int) -> bool:
    members = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list)):
        return False
    return limit == 0 or any(_is_deeper(member, limit - 1) for member in members)


class TextPart(StrictModel):
    unsupported: ClassVar = unsupported.CONTENT_PART_FIELDS

    type: Literal["text"] = Field(description='"text", the only kind of part that is supported')
    text: str = Field(description="a string")


class Message(StrictModel):
    unsupported: ClassVar = unsupported.MESSAGE_FIELDS

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description='"system", "developer", "user" or "assistant"'
    )
    content: Annotated[
        list[TextPart],
        FailFast(),
        BeforeValidator(
            _as_parts,
            json_schema_input_type=str | Annotated[list[TextPart], Field(min_length=1)],
        ),
    ] = Field(min_length=1, description='a string or a non-empty array of {"type": "text"} parts')
    name: str | None = Field(None, description="a string")

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content)

    def for_template(self) -> dict[str, str]:
        """The message as chat templates know it; they know no developer role."""
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": self.text}
        return message if self.name is None else message | {"name": self.name}


class ChatCompletionRequest(GenerationFields):
    unsupported: ClassVar = unsupported.CHAT_FIELDS

    messages: Annotated[list[Message], FailFast()] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        description=f"a non-empty array of at most {MAX_MESSAGES} messages",
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, lt=2**31, description="an integer of at least 1"
    )
    logprobs: bool = Field(False, description="a boolean")
    top_logprobs: int = Field(
        0, ge=0, le=MAX_LOGPROBS, description=f"an integer from 0 to {MAX_LOGPROBS}"
    )
    chat_template_kwargs: Annotated[dict[str, Any], BeforeValidator(_template_variables)] = Field(
        {}, description="an object"
    )
    add_generation_prompt: bool = Field(True, description="a boolean")

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise RefusedError("is only allowed when logprobs is true", where=".top_logprobs")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise RefusedError(
                f"is {self.max_completion_tokens} but max_tokens, its older name, is "
                f"{self.max_tokens}; send one of them",
                where=".max_completion_tokens",
            )
        return self

    @property
    def max_new_tokens(self) -> int | None:
        """None: until the context is full."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def num_sequences(self) -> int:
        """Continuations that are generated at the same time."""
        return self.n

    def prompt_parts(self) -> Iterator[str]:
        """What the prompt is made of, in the order in which templates write it, for routing."""
        for message in self.messages:
            yield f"\n{message.role}\n"
            yield from (part.text for part in message.content)

    def prompt_size_estimate(self) -> int:
        """Tokens of the prompt, roughly, for routing."""
        chars = sum(len(part.text) for message in self.messages for part in message.content)
        return chars // CHARS_PER_TOKEN + MESSAGE_OVERHEAD_TOKENS * len(self.messages)

    def max_new_tokens_estimate(self) -> int:
        """Tokens that may be generated, over all choices, roughly, for routing."""
        return self.n * (self.max_new_tokens or UNBOUNDED_NEW_TOKENS_ESTIMATE)
