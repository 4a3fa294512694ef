"""What both generation endpoints accept: OpenAI's sampling fields and vLLM's extensions."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from deployments.http.errors import shown
from deployments.protocol import unsupported
from deployments.protocol.strict import RefusedError, StrictModel
from deployments.protocol.structured_output import StructuredOutputFields

MAX_CHOICES = 16
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1000
MAX_LISTED_TOKENS = 1024
MAX_LOGPROBS = 20
CHARS_PER_TOKEN = 4
BYTES_PER_TOKEN = 4
UNBOUNDED_NEW_TOKENS_ESTIMATE = 256

_TOKEN_ID_KEY = re.compile(r"0|[1-9][0-9]{0,9}")
TokenIdKey = Annotated[str, Field(pattern=f"^({_TOKEN_ID_KEY.pattern})$")]
_INT32_MAX = 2**31 - 1


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _known_token_keys(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_LISTED_TOKENS:
        raise RefusedError(f"must have at most {MAX_LISTED_TOKENS} token ids, not {len(value)}")
    for key in value:
        if not _TOKEN_ID_KEY.fullmatch(key) or int(key) > _INT32_MAX:
            raise RefusedError(f"must have token ids as keys, not {shown(key)}")
    return value


TokenId = Annotated[int, Field(ge=0, le=_INT32_MAX)]
Bias = Annotated[float, Field(ge=-100, le=100)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


def num_bytes(text: str) -> int:
    """In UTF-8; a lone surrogate, which nobody can encode, counts as a character there."""
    return len(text.encode("utf-8", "surrogatepass"))


class PromptSize(NamedTuple):
    """What a prompt's tokens are reckoned with before anybody has tokenized it."""

    likely: int
    most: int
    """A byte may be a token, and no token is less."""

    @classmethod
    def of_bytes(cls, num_bytes: int, *, added: int) -> Self:
        """``added``: tokens that stand in no text of the request."""
        return cls(num_bytes // BYTES_PER_TOKEN + 1, num_bytes + added)

    def within(self, longest: int) -> PromptSize:
        return PromptSize(min(self.likely, longest), min(self.most, longest))


class StreamOptions(StrictModel):
    unsupported: ClassVar = unsupported.STREAM_OPTIONS_FIELDS

    include_usage: bool = Field(False, description="a boolean")


class GenerationFields(StructuredOutputFields):
    """Fields with the same meaning on both endpoints. How tokens are drawn has no defaults here:
    the model's hold, which its replicas know."""

    model: str = Field(min_length=1, description="a non-empty string, a model's name")
    stream: bool = Field(False, description="a boolean")
    stream_options: StreamOptions | None = Field(None, description="an object")
    n: int = Field(1, ge=1, le=MAX_CHOICES, description=f"an integer from 1 to {MAX_CHOICES}")
    stop: Annotated[
        list[StopString],
        BeforeValidator(
            _as_list,
            json_schema_input_type=StopString
            | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)],
        ),
    ] = Field(
        [],
        max_length=MAX_STOP_STRINGS,
        description=f"a non-empty string of at most {MAX_STOP_CHARS} characters, or an array of "
        f"at most {MAX_STOP_STRINGS} of them",
    )
    seed: int | None = Field(
        None, ge=-(2**63), lt=2**63, description="an integer of at most 64 bits, signed"
    )
    max_tokens: int | None = Field(
        None, ge=1, le=_INT32_MAX, description="an integer of at least 1"
    )
    temperature: float | None = Field(None, ge=0, le=2, description="a number from 0 to 2")
    top_p: float | None = Field(None, gt=0, le=1, description="a number more than 0 and at most 1")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="a number from -2 to 2")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="a number from -2 to 2")
    logit_bias: Annotated[
        dict[str, Bias],
        BeforeValidator(
            _known_token_keys,
            json_schema_input_type=Annotated[
                dict[TokenIdKey, Bias], Field(max_length=MAX_LISTED_TOKENS)
            ],
        ),
    ] = Field(
        {},
        description=f"an object of at most {MAX_LISTED_TOKENS} token ids (as strings) to numbers "
        "from -100 to 100",
    )

    prompt_cache_key: str | None = Field(None, description="a string")

    top_k: int | None = Field(
        None, ge=-1, le=_INT32_MAX, description="an integer of at least -1; 0 and -1 turn it off"
    )
    min_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    repetition_penalty: float | None = Field(
        None, gt=0, le=10, description="a number more than 0 and at most 10"
    )
    ignore_eos: bool = Field(False, description="a boolean")
    stop_token_ids: list[TokenId] = Field(
        [],
        max_length=MAX_LISTED_TOKENS,
        description=f"an array of at most {MAX_LISTED_TOKENS} token ids",
    )
    priority: int = Field(
        0, ge=-_INT32_MAX, le=_INT32_MAX, description="an integer of 32 bits; lower runs first"
    )
    cache_salt: str = Field("", description="a string")

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise RefusedError("is only allowed when stream is true", where=".stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage
